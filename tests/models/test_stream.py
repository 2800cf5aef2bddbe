"""Stacks that are filled a layer at a time."""

from __future__ import annotations

import itertools
import time

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import stream
from jaxrl.models.decoder import Leaf

ROW = (1024, 1024)


def _leaf(depth: int) -> Leaf:
    return Leaf((depth, *ROW), ("layers", "embed", "mlp"), batch=1, inputs=1)


def _seconds_a_layer(depth: int, dtype: str) -> float:
    """The least time from one layer to the next."""
    layer, marks = np.ones(ROW, jnp.dtype(dtype)), []

    def layers():
        for _ in range(depth):
            marks.append(time.perf_counter())
            yield layer

    stream.assemble(_leaf(depth), layers(), None, dtype, None)
    return min(after - before for before, after in itertools.pairwise(marks))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_layer_takes_the_same_time_whatever_the_depth(dtype):
    assert _seconds_a_layer(48, dtype) < 4 * _seconds_a_layer(4, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_layers_are_put_together_to_the_last_bit(dtype):
    layers = np.random.default_rng(0).standard_normal((3, *ROW)).astype(jnp.dtype(dtype))
    whole = np.asarray(stream.assemble(_leaf(3), layers, None, dtype, None))
    assert whole.dtype == layers.dtype
    assert whole.tobytes() == layers.tobytes()
