"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from tests import COMPILED

_MAPS = 25_000
"""Memory maps of this process; Linux gives it 65,530, and compiled programs hold several each."""


def pytest_configure() -> None:
    """Share compiled programs between the tests, their processes and the next time."""
    cache = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", COMPILED)
    jax.config.update("jax_compilation_cache_dir", cache)


@pytest.fixture(autouse=True, scope="module")
def room_to_compile() -> Iterator[None]:
    """Forget compiled programs between modules, once so many are held that LLVM may soon fail."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > _MAPS:
        jax.clear_caches()
        gc.collect()
