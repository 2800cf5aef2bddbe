"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from tests import COMPILED

_MEMORY_PAGES = 500_000
"""Resident pages of 4 KiB of this process from which on it forgets compiled programs: 2 GB."""


def pytest_configure() -> None:
    """Share compiled programs between the tests, their processes and the next time."""
    cache = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", COMPILED)
    jax.config.update("jax_compilation_cache_dir", cache)
    # Programs of tests are small: without this, most compile too quickly to be kept.
    least = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(least))
    # Compiling takes most of the tests' time. The broad tests of `.ci/run` and the slow ones run
    # programs that are compiled as a user's are.
    fast = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    jax.config.update("jax_disable_most_optimizations", fast == "1")


@pytest.fixture(autouse=True, scope="module")
def room_to_compile() -> Iterator[None]:
    """Forget compiled programs between modules, once they hold much memory. Each also has memory
    maps, of which Linux gives a process 65,530; LLVM fails without one."""
    yield
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) > _MEMORY_PAGES:
        jax.clear_caches()
        gc.collect()
