"""Parameters: a part of them that is trained, and stacks that are filled a layer at a time."""

from __future__ import annotations

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder, stream, subset
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Leaf

CONFIG = DecoderConfig(11, 8, 12, 2, 2, 1, 4)
ROW = (1024, 1024)


@pytest.mark.exact("parameters that are split and joined are as they were")
def test_split_and_join():
    params = decoder.init(CONFIG, jax.random.key(0))
    trained, frozen = subset.split(params, ["layers/mlp/*", "embed"])
    assert set(trained) == {"embed", "layers"} and set(trained["layers"]) == {"mlp"}
    assert "mlp" not in frozen["layers"] and "norm" in frozen
    joined = subset.join(trained, frozen)
    assert jax.tree.structure(joined) == jax.tree.structure(params)
    assert all(
        a is b for a, b in zip(jax.tree.leaves(joined), jax.tree.leaves(params), strict=True)
    )


def test_a_pattern_that_matches_nothing():
    params = decoder.init(CONFIG, jax.random.key(0))
    with pytest.raises(ValueError, match="'layers/mlp/gat' matches none of"):
        subset.split(params, ["layers/mlp/gat"])


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
