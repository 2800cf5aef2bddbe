"""Stacks that are filled a layer at a time."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import stream

ROW = (512, 2048)


@pytest.fixture
def as_users_compile():
    """The compiler's optimisations on, which most tests do without."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def _seconds(depth: int, dtype: str) -> float:
    """The least time that one row takes to write, of several."""
    write = jax.jit(stream.write_row, donate_argnums=0)
    stack, layer = jnp.zeros((depth, *ROW), dtype), jnp.ones(ROW, dtype)
    times = []
    for row in range(6):
        start = time.perf_counter()
        stack = jax.block_until_ready(write(stack, layer, row % depth))
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8", "int8"])
def test_a_row_takes_the_same_time_whatever_the_depth(dtype, as_users_compile):
    assert _seconds(32, dtype) < 4 * _seconds(2, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8", "int8"])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_row_is_written_to_the_last_bit(dtype, row):
    random = np.random.default_rng(0).integers(0, 256, (4, 3, 16), np.uint8)
    values = random.view(jnp.dtype(dtype))
    stack, layer = values[:3], values[3]
    written = np.asarray(jax.jit(stream.write_row)(stack, layer, row))
    expected = stack.copy()
    expected[row] = layer
    assert written.tobytes() == expected.tobytes()
