"""`decoder.extend` in any pieces against the uncached forward pass."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxrl.models import decoder, head
from jaxrl.models.config import (
    ChunkedLayers,
    DecoderConfig,
    DeltaRule,
    Experts,
    Latent,
    LayerKinds,
    Mamba2,
    SideBySide,
)
from tests import broad_except

V = 31
_SHAPE = (V, 16, 24, 1, 4, 2, 8)
FAMILIES = {
    "plain": DecoderConfig(*_SHAPE),
    "local layers": DecoderConfig(
        *(V, 16, 24, 2, 4, 2, 8),
        sliding_window=40,
        local_layers=(True, False),
        local_rope_theta=100.0,
        qk_norm="head",
        post_norm=True,
        attention_softcap=5.0,
        logit_softcap=8.0,
    ),
    "experts": DecoderConfig(*_SHAPE, experts=Experts(4, 2, 8, shared_size=8)),
    "latent": DecoderConfig(
        *(V, 16, 24, 1, 4, 4, 8), latent=Latent(8, q_rank=None, nope_dim=8, rope_dim=4, v_dim=6)
    ),
    "kinds": DecoderConfig(
        *(V, 16, 24, 5, 4, 2, 8),
        sliding_window=40,
        local_layers=(True, False, True, False, False),
        local_rope_theta=100.0,
        rope_fraction=0.25,
        logit_softcap=4.0,
        experts=Experts(4, 2, 8, shared_size=24, floor=0.0),
        kinds=LayerKinds(
            global_head_dim=12,
            global_kv_heads=1,
            keys_are_values=True,
            sharing=3,
            input_size=6,
            input_vocab=V,
        ),
    ),
    "chunks": DecoderConfig(
        *(V, 16, 24, 5, 4, 2, 8),
        rope_layers=(True, False, True, False, True),
        rope_interleaved=True,
        experts=Experts(4, 2, 8, shared_size=8, scoring="sigmoid", normalize=False),
        chunks=ChunkedLayers(
            40, routed=(False, True, False, True, False), temperature=0.5, interval=30
        ),
    ),
    "hybrid": DecoderConfig(
        *(V, 16, 24, 5, 4, 2, 8),
        norm_offset=1.0,
        qk_norm="head",
        rope_fraction=0.5,
        attention_gate=True,
        delta=DeltaRule(2, 4, key_dim=8, value_dim=6, taps=4, projections="joined"),
        recurrent_layers=(True, False, True, False, True),
    ),
    "convolution": DecoderConfig(
        *(V, 16, 24, 5, 4, 2, 8),
        qk_norm="head",
        convolution=3,
        recurrent_layers=(True, False, True, False, True),
        experts=Experts(4, 2, 8, dense_layers=2),
    ),
    "channels": DecoderConfig(
        *(V, 16, 24, 3, 4, 4, 8),
        rope_layers=(False,) * 3,
        latent=Latent(8, q_rank=None, nope_dim=4, rope_dim=4, v_dim=6),
        delta=DeltaRule(2, 2, 8, 8, taps=4, projections="apart", by_channel=True),
        recurrent_layers=(True, False, True),
    ),
    "mamba": DecoderConfig(
        *(V, 16, 24, 5, 4, 2, 8),
        residual_scale=0.5,
        rope_layers=(False,) * 5,
        mamba=Mamba2(4, 8, groups=2, state=6, taps=4),
        recurrent_layers=(True, False, True, False, True),
        experts=Experts(4, 2, 8, shared_size=8),
    ),
    "beside": DecoderConfig(
        *(V, 16, 24, 3, 4, 2, 8),
        mamba=Mamba2(4, 8, 2, 6, 4, norm="none", factors=(0.6, 0.8, 1.4, 1.2, 0.7)),
        recurrent_layers=(True,) * 3,
        beside=SideBySide(0.7, 0.6, 0.4, 1.3, 0.5, 0.7, 1.6),
    ),
    "parts": DecoderConfig(
        *(V, 16, 24, 5, 4, 2, 8),
        activation="relu",
        self_gated=True,
        mamba=Mamba2(4, 8, groups=2, state=6, taps=4),
        recurrent_layers=(True, False, False, False, True),
        parts=("mixer", "experts", "attention", "mlp", "mixer"),
        experts=Experts(4, 2, 8, shared_size=8),
    ),
}
WIDTHS = (8, 136)
"""Tokens of one call: less than one block of attention's queries, and more."""
CACHE = 272


@functools.cache
def _params(family: str) -> decoder.Params:
    params = jax.jit(decoder.init, static_argnums=0)(FAMILIES[family], jax.random.key(0))
    return {**params, "embed": 2 * params["embed"]}


def _log_probs(config, params, hidden):
    scores = head.logits(hidden, decoder.unembedding(params), softcap=config.logit_softcap)
    return jax.nn.log_softmax(scores)


@functools.partial(jax.jit, static_argnums=0)
def _uncached(config, params, tokens):
    index = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden = decoder.hidden(config, params, tokens, index, jnp.full_like(index, tokens.shape[1]))
    return _log_probs(config, params, hidden)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("window", "from_start"))
def _extend(config, params, tokens, positions, cache, *, window, from_start):
    hidden, cache = decoder.extend(
        config,
        decoder.unstack(params),
        tokens,
        positions,
        cache,
        window=window,
        from_start=from_start,
    )
    return _log_probs(config, params, hidden), cache


pieces = st.lists(
    st.tuples(st.sampled_from(WIDTHS), st.integers(1, 136), st.booleans()), min_size=1, max_size=5
)
"""Of each call: its width, how many tokens are real, whether attention reads the whole cache."""


@pytest.mark.sample(1, broad=3)
@pytest.mark.exact("log-probs of cached passes in any pieces equal the uncached ones to 1e-4")
@pytest.mark.parametrize("family", broad_except(["plain", "latent"], FAMILIES))
@settings(max_examples=20, deadline=None, derandomize=True)
@given(pieces=pieces, ahead=st.integers(0, 8))
@example(pieces=[(8, 8, True), (136, 100, False)], ahead=0)
@example(pieces=[(136, 136, False), (136, 130, True)], ahead=3)
def test_extend_equals_the_uncached_pass(family, pieces, ahead):
    """Lengths, offsets, pieces with padding and windows; the second row is `ahead` of the first."""
    config, params = FAMILIES[family], _params(family)
    tokens = np.random.default_rng(ahead).integers(0, V, (2, CACHE)).astype(np.int32)
    expected = np.asarray(_uncached(config, params, tokens))
    cache, done = decoder.empty_cache(config, 2, CACHE), np.zeros(2, int)
    first = [(8, np.array([0, ahead]), True)] if ahead else []
    for width, real, whole in first + pieces:
        real = np.broadcast_to(np.minimum(real, min(width, CACHE - int(done.max()))), 2)
        column = np.arange(width)
        index = np.where(column < real[:, None], done[:, None] + column, CACHE).astype(np.int32)
        given = np.take_along_axis(tokens, np.minimum(index, CACHE - 1), axis=1)
        narrow = width == 136 and (done + real).max() <= width and not whole
        got, cache = _extend(
            config,
            params,
            given,
            index,
            cache,
            window=width if narrow else None,
            from_start=not done.any(),
        )
        for row, count in enumerate(real):
            span = slice(done[row], done[row] + count)
            np.testing.assert_allclose(
                np.asarray(got)[row, :count], expected[row, span], atol=1e-4, rtol=0
            )
        done = done + real


@pytest.mark.parametrize(
    ("family", "change", "says"),
    [
        ("parts", {"mlp_bias": True}, "self_gated=True has no mlp_bias"),
        ("parts", {"experts": Experts(4, 2, 8, biases=True)}, "self_gated=True .* leave them out"),
        ("parts", {"experts": Experts(4, 2, 8, clamp=7.0)}, "self_gated=True .* leave them out"),
        (
            "kinds",
            {"experts": None},
            "sharing_mlp_size=0: 3 layers of sharing need an MLP; set",
        ),
        ("chunks", {"chunks": ChunkedLayers(4, (True,) * 3)}, "needs 5 entries of routed"),
        ("chunks", {"chunks": ChunkedLayers(4, (False,) * 5)}, "needs experts where routed"),
        ("chunks", {"sliding_window": 4, "local_layers": (True,) * 5}, "no other kinds of layers"),
        ("kinds", {"kinds": LayerKinds(12, 3)}, "num_heads=4 .* choose global_kv_heads that divid"),
    ],
)
def test_shapes_that_no_layer_has_are_refused(family, change, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(FAMILIES[family], **change)
