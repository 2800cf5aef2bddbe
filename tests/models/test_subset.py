"""Training a part of the parameters."""

from __future__ import annotations

import jax
import pytest

from jaxrl.models import decoder, subset
from jaxrl.models.config import DecoderConfig

CONFIG = DecoderConfig(11, 8, 12, 2, 2, 1, 4)


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
