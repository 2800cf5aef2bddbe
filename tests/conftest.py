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


@pytest.fixture(autouse=True, scope="module")
def room_to_compile() -> Iterator[None]:
    """Forget compiled programs between modules, once they hold much memory. Each also has memory
    maps, of which Linux gives a process 65,530; LLVM fails without one."""
    yield
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) > _MEMORY_PAGES:
        jax.clear_caches()
        gc.collect()
