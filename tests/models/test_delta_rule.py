"""Recurrences in chunks against one token at a time, and what padding does to a state."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig, Experts, Latent, SideBySide
from jaxrl.models.mixers import channel_delta, delta_rule, pattern, state_space
from tests.models.test_extend import FAMILIES

B, H, K, V = 2, 3, 8, 6


def _inputs(total: int, *, alike: bool = False) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(total)
    q, k = rng.standard_normal((2, B, total, H, K))
    if alike:  # the worst case of a chunk's triangular system
        k = np.broadcast_to(k[:, :1], k.shape)
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    v = rng.standard_normal((B, total, H, V))
    g = -np.exp(rng.uniform(-9, 4, (B, total, H)))
    if alike:
        g = 1e-4 * g
    beta = rng.uniform(0.9 if alike else 0, 1, (B, total, H))
    return tuple(np.asarray(a, np.float32) for a in (q, k, v, g, beta))


def _one_by_one(inputs, state, segment):
    """The definition, in float64."""
    q, k, v, g, beta = (np.asarray(a, np.float64) for a in inputs)
    state, out = np.asarray(state, np.float64), np.zeros(v.shape)
    before = np.zeros(B, int)
    for t in range(q.shape[1]):
        state = np.where((segment[:, t] == before)[:, None, None, None], state, 0)
        before = segment[:, t]
        decay = np.exp(g[:, t])[..., None]
        state = state * (decay if g.ndim == 4 else decay[..., None])
        change = (v[:, t] - np.einsum("bhk,bhkv->bhv", k[:, t], state)) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * change[:, :, None]
        out[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], state)
    return out, state


def _by_feature(inputs):
    """Decays of a head, another for each feature of its keys."""
    q, k, v, g, beta = inputs
    factors = np.random.default_rng(7).uniform(0, 2, (*g.shape, K)).astype(np.float32)
    return q, k, v, g[..., None] * factors, beta


@pytest.mark.sample(3, broad=5)
@pytest.mark.exact("the gated delta rule in chunks equals one token at a time to 2e-6")
@pytest.mark.parametrize("rule", [delta_rule, channel_delta])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("total, chunk", [(1, 8), (5, 8), (64, 64), (150, 64), (47, 16)])
def test_chunks_equal_single_tokens(total, chunk, alike, rule):
    """Segments begin anywhere; the incoming state reaches the first alone."""
    inputs = _inputs(total, alike=alike)
    inputs = _by_feature(inputs) if rule is channel_delta else inputs
    rng = np.random.default_rng(1)
    state = rng.standard_normal((B, H, K, V)).astype(np.float32)
    starts = rng.random((B, total)) < 0.05
    starts[0, 0] = total == 5  # also at once
    segment = np.cumsum(starts, axis=1).astype(np.int32)
    expected, last = _one_by_one(inputs, state, segment)
    got, end = rule.run(*inputs, state, segment, chunk=chunk)
    np.testing.assert_allclose(got, expected, atol=2e-6 * max(1, np.abs(expected).max()))
    np.testing.assert_allclose(end, last, atol=2e-6 * max(1, np.abs(last).max()))


@pytest.mark.exact("gradients of the gated delta rule in chunks equal those of single tokens")
@pytest.mark.parametrize("rule", [delta_rule, pytest.param(channel_delta, marks=pytest.mark.broad)])
def test_gradients(rule):
    total = 40
    inputs, state = _inputs(total), np.ones((B, H, K, V), np.float32)
    inputs = _by_feature(inputs) if rule is channel_delta else inputs
    segment = np.broadcast_to(np.arange(total) // 17, (B, total)).astype(np.int32)
    weight = np.random.default_rng(2).standard_normal((B, total, H, V))

    def chunked(inputs):
        return jnp.sum(rule.run(*inputs, state, segment, chunk=16)[0] * weight)

    def single(inputs):
        def one(carry, xs):
            state, before = carry
            *token, now = xs
            state = jnp.where((now == before)[:, None, None, None], state, 0)
            y, state = rule.step(*token, state)
            return (state, now), y

        xs = (*(jnp.moveaxis(a, 1, 0) for a in inputs), segment.T)
        y = jax.lax.scan(one, (state, jnp.zeros(B, jnp.int32)), xs)[1]
        return jnp.sum(jnp.moveaxis(y, 0, 1) * weight)

    got, expected = (jax.jit(jax.grad(f))(inputs) for f in (chunked, single))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


@pytest.mark.exact("Mamba-2 in chunks equals one token at a time to 2e-6, gradients to 2e-5")
@pytest.mark.parametrize("total, chunk", [(5, 8), (47, 16)])
def test_state_spaces_in_chunks_equal_single_tokens(total, chunk):
    """Two groups of two heads; segments begin anywhere."""
    rng = np.random.default_rng(total)
    q, k = rng.standard_normal((2, B, total, 2, K)).astype(np.float32)
    v = rng.standard_normal((B, total, 4, V)).astype(np.float32)
    g = -np.exp(rng.uniform(-9, 4, (B, total, 4))).astype(np.float32)
    state = rng.standard_normal((B, 4, K, V)).astype(np.float32)
    starts = rng.random((B, total)) < 0.05
    starts[0, 0] = total == 5  # also at once
    segment = np.cumsum(starts, axis=1).astype(np.int32)
    weight = rng.standard_normal(v.shape)

    def chunked(inputs):
        y, end = state_space.run(*inputs, state, segment, chunk=chunk)
        return jnp.sum(y * weight), (y, end)

    def single(inputs):
        def one(carry, xs):
            state, before = carry
            *token, now = xs
            state = jnp.where((now == before)[:, None, None, None], state, 0)
            y, state = state_space.step(*token, state)
            return (state, now), y

        xs = (*(jnp.moveaxis(a, 1, 0) for a in inputs), segment.T)
        (end, _), y = jax.lax.scan(one, (state, jnp.zeros(B, jnp.int32)), xs)
        y = jnp.moveaxis(y, 0, 1)
        return jnp.sum(y * weight), (y, end)

    ours, theirs = (jax.jit(jax.grad(f, has_aux=True))((q, k, v, g)) for f in (chunked, single))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * np.abs(b).max())


def test_segments_begin_where_a_token_does_not_follow_the_one_before():
    positions = np.array([[0, 1, 2, 0, 1, 0, 0], [0, 0, 1, 2, 3, 4, 5]])
    until = np.array([[3, 3, 3, 5, 5, 0, 0], [0, 7, 7, 7, 7, 7, 7]])
    got = np.asarray(pattern.segments(positions, until))
    assert got.tolist() == [[1, 1, 1, 2, 2, 3, 4], [1, 2, 2, 2, 2, 2, 2]]


HYBRID = FAMILIES["hybrid"]


@functools.cache
def _params(family="hybrid"):
    return decoder.init(FAMILIES[family], jax.random.key(0))


@pytest.mark.broad
@pytest.mark.parametrize("family", ["hybrid", "mamba", "beside", "channels"])
def test_gradients_at_zeros_are_finite(family):
    params = {**_params(family), "embed": jnp.zeros_like(_params(family)["embed"])}

    def loss(params):
        tokens = np.zeros((1, 9), np.int32)
        hidden = decoder.hidden(
            FAMILIES[family], params, tokens, np.arange(9)[None], np.full((1, 9), 9), remat="full"
        )
        return jnp.sum(hidden)

    assert all(jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(jax.grad(loss)(params)))


@pytest.mark.sample(1, broad=1)
@pytest.mark.exact("tokens of padding change no bit of a recurrent state, wherever they stand")
@pytest.mark.parametrize(
    "family", ["hybrid", "convolution", "mamba", "parts", "beside", "channels"]
)
def test_padding_changes_no_state(family):
    config, rng = FAMILIES[family], np.random.default_rng(3)
    tokens = rng.integers(0, 31, (2, 12)).astype(np.int32)
    unstacked = decoder.unstack(_params(family))
    run = jax.jit(functools.partial(decoder.extend, config, unstacked))
    _, cache = run(tokens[:, :5], np.tile(np.arange(5), (2, 1)), decoder.empty_cache(config, 2, 32))
    for width in (1, 7):
        beyond = np.full((2, width), 32)
        _, after = run(tokens[:, 5 : 5 + width], beyond, cache)
        assert all(map(np.array_equal, jax.tree.leaves(cache), jax.tree.leaves(after)))
    index = np.array([[32, 5, 32, 32, 6, 7, 32], [5, 32, 6, 7, 32, 8, 32]])
    given = np.where(index < 32, np.take_along_axis(tokens, np.minimum(index, 11), 1), 1)
    mixed, scattered = run(given, index, cache)
    for row, real in enumerate(index < 32):
        count = int(real.sum())
        at = np.full((2, 7), 32)
        at[row, :count] = np.arange(5, 5 + count)
        plain, dense = run(tokens[:, 5:], at, cache)
        np.testing.assert_allclose(mixed[row][real], plain[row, :count], atol=1e-6)
        for a, b in zip(jax.tree.leaves(scattered), jax.tree.leaves(dense), strict=True):
            np.testing.assert_allclose(a[row], b[row], atol=1e-6)


@pytest.mark.broad
@pytest.mark.exact("a scan over periods of layers, and a part of one, equals the layers one by one")
def test_periods_equal_single_layers(monkeypatch):
    """Two periods of two layers and a fifth, with what the routers of all did."""
    experts = Experts(4, 2, 8, shared_size=8, shared_gate=True)
    config = dataclasses.replace(HYBRID, experts=experts)
    params = decoder.init(config, jax.random.key(1))
    assert {"layers_0", "layers_1"} == {name for name in params if name.startswith("layers")}
    tokens = np.random.default_rng(4).integers(0, 31, (2, 7))
    rows = (tokens, np.tile(np.arange(7), (2, 1)), np.full((2, 7), 7))
    expected, routing = decoder.routed(config, params, *rows)
    unstacked = decoder.unstack(params)
    single = {
        f"layers_{i}": jax.tree.map(lambda a: a[None], layer)
        for i, layer in enumerate(unstacked.pop("layers"))
    }
    monkeypatch.setattr(DecoderConfig, "period", 5)
    got, one_by_one = decoder.routed(config, unstacked | single, *rows)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert routing.chosen.shape == (5, 2, 7, 2)
    np.testing.assert_array_equal(routing.chosen, one_by_one.chosen)


def test_routing_above_dense_layers():
    """What routers did is told of the layers that have one."""
    config, params = FAMILIES["convolution"], _params("convolution")
    assert config.period == config.num_layers == 5
    tokens = np.random.default_rng(4).integers(0, 31, (2, 7))
    rows = (tokens, np.tile(np.arange(7), (2, 1)), np.full((2, 7), 7))
    hidden, routing = decoder.routed(config, params, *rows)
    np.testing.assert_allclose(hidden, decoder.hidden(config, params, *rows), atol=1e-6)
    assert routing.chosen.shape == (3, 2, 7, 2)


@pytest.mark.parametrize(
    "changes, needs",
    [
        ({"recurrent_layers": (True,) * 5}, "attention in some layer"),
        ({"delta": None}, "one of delta, convolution and mamba"),
        ({"convolution": 3}, "one of delta, convolution and mamba"),
        ({"delta": None, "convolution": 1}, "2 tokens or more"),
        ({"parts": ("mixer", "mlp", "mixer", "mlp", "mixer")}, "attention in some layer"),
        ({"parts": ("attention",) * 5}, "parts that are mixers"),
        ({"parts": ("mixer", "attention", "mixer", "experts", "mixer")}, "experts where parts are"),
        ({"beside": SideBySide()}, "mamba in all layers"),
        ({"latent": Latent(4, None, 4, 4, 4)}, "by_channel in delta"),
        ({"recurrent_layers": (True, False)}, "2 entries for num_layers=5"),
    ],
)
def test_what_recurrent_layers_need(changes, needs):
    with pytest.raises(ValueError, match=needs):
        dataclasses.replace(HYBRID, **changes)
