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
from jaxrl.models.mixers import channel_delta, convolution, delta_rule, state_space
from jaxrl.models.mixers import tree as trees
from jaxrl.models.mixers.tree import Tree
from jaxrl.training.tries import count_levels
from tests.models.test_extend import FAMILIES
from tests.models.test_masks import rows

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


def _rows(total: int, *, depth: int = 3) -> tuple[np.ndarray, Tree]:
    """The parents of two rows of random trees [B, T], by construction, and the same as a `Tree`."""
    drawn = [rows(seed, depth) for seed in range(B)]
    parent, until = (np.stack([row[i][:total] for row in drawn]) for i in (0, 2))
    until = np.minimum(until, total)
    return parent, trees.of_rows(jnp.asarray(until), count_levels(until))


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_a_triangular_system_is_solved_as_in_float64(size):
    rng = np.random.default_rng(size)
    keys = rng.standard_normal((3, size, 4))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    system = np.tril(keys @ np.swapaxes(keys, -1, -2), -1)
    right, weights = rng.standard_normal((2, 3, size, 7))
    whole = np.eye(size) + system
    solution = np.linalg.solve(whole, right)
    of_right = np.linalg.solve(np.swapaxes(whole, -1, -2), weights)
    x, backward = jax.vjp(delta_rule.solve, jnp.float32(system), jnp.float32(right))
    np.testing.assert_allclose(x, solution, atol=3e-6)
    gradients = backward(jnp.float32(weights))
    np.testing.assert_allclose(gradients[1], of_right, atol=1e-5)
    of_system = -of_right @ np.swapaxes(solution, -1, -2)
    np.testing.assert_allclose(gradients[0], of_system, atol=1e-4)


def _one_by_one(inputs, state, parent):
    """The definition, in float64; a token whose parent is -1 continues `state`."""
    q, k, v, g, beta = (np.asarray(a, np.float64) for a in inputs)
    states, out = np.zeros((q.shape[1] + 1, *state.shape)), np.zeros(v.shape)
    states[-1] = state
    for t in range(q.shape[1]):
        before = states[parent[:, t], np.arange(B)]
        decay = np.exp(g[:, t])[..., None]
        before = before * (decay if g.ndim == 4 else decay[..., None])
        change = (v[:, t] - np.einsum("bhk,bhkv->bhv", k[:, t], before)) * beta[:, t, :, None]
        states[t] = before + k[:, t, :, :, None] * change[:, :, None]
        out[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], states[t])
    return out, states[-2]


def _scanned(step, inputs, state, parent):
    """The same by `step`, to differentiate: what all tokens read, and the last state."""
    total = parent.shape[1]
    states = jnp.zeros((total + 1, *state.shape)).at[total].set(state)

    def one(states, xs):
        t, before, *token = xs
        y, state = step(*token, states[before, jnp.arange(B)])
        return states.at[t].set(state), y

    xs = (jnp.arange(total), parent.T % (total + 1), *(jnp.moveaxis(a, 1, 0) for a in inputs))
    states, y = jax.lax.scan(one, states, xs)
    return jnp.moveaxis(y, 0, 1), states[total - 1]


def _by_feature(inputs):
    """Decays of a head, another for each feature of its keys."""
    q, k, v, g, beta = inputs
    factors = np.random.default_rng(7).uniform(0, 2, (*g.shape, K)).astype(np.float32)
    return q, k, v, g[..., None] * factors, beta


CASES = [(1, 8, 0), (5, 8, 2), (64, 64, 0), (150, 64, 1), (150, 64, 4), (47, 16, 3), (47, 16, 0)]
"""Tokens, those of a chunk, and how often paths of a row branch; 0: a row continues a state."""


def _state_and_tree(total: int, depth: int, shape: tuple[int, ...]):
    """A state before the first token, the parents of all, and the tree, if there is one."""
    if depth:
        return np.zeros(shape, np.float32), *_rows(total, depth=depth)
    parent = np.broadcast_to(np.arange(-1, total - 1), (B, total))
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32), parent, None


@pytest.mark.sample(4, broad=8)
@pytest.mark.exact(
    "the gated delta rule in chunks equals one token at a time to 2e-6, in trees too"
)
@pytest.mark.parametrize("rule", [delta_rule, channel_delta])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("total, chunk, depth", CASES)
def test_chunks_equal_single_tokens(total, chunk, depth, alike, rule):
    """Several trees a row, of runs that begin anywhere in a chunk."""
    inputs = _inputs(total, alike=alike)
    inputs = _by_feature(inputs) if rule is channel_delta else inputs
    state, parent, tree = _state_and_tree(total, depth, (B, H, K, V))
    expected, last = _one_by_one(inputs, state, parent)
    got, end = jax.jit(functools.partial(rule.run, chunk=chunk))(*inputs, state, tree)
    np.testing.assert_allclose(got, expected, atol=2e-6 * max(1, np.abs(expected).max()))
    if not depth:
        np.testing.assert_allclose(end, last, atol=2e-6 * max(1, np.abs(last).max()))


@pytest.mark.exact("gradients of the gated delta rule in chunks equal those of single tokens")
@pytest.mark.parametrize("depth", [3, pytest.param(0, marks=pytest.mark.broad)])
@pytest.mark.parametrize("rule", [delta_rule, pytest.param(channel_delta, marks=pytest.mark.broad)])
def test_gradients(rule, depth):
    """A token sums those of all that continue it."""
    total = 40
    inputs = _inputs(total)
    inputs = _by_feature(inputs) if rule is channel_delta else inputs
    state, parent, tree = _state_and_tree(total, depth, (B, H, K, V))
    weight = np.random.default_rng(2).standard_normal((B, total, H, V))

    def chunked(inputs, state):
        return jnp.sum(rule.run(*inputs, state, tree, chunk=16)[0] * weight)

    def single(inputs, state):
        return jnp.sum(_scanned(rule.step, inputs, state, parent)[0] * weight)

    both = (jax.jit(jax.grad(f, (0, 1)))(inputs, state) for f in (chunked, single))
    got, expected = ((*inputs, *([] if depth else [state])) for inputs, state in both)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


@pytest.mark.exact("Mamba-2 in chunks equals one token at a time to 2e-6, gradients to 2e-5")
@pytest.mark.parametrize("total, chunk, depth", [(5, 8, 0), (47, 16, 3)])
def test_state_spaces_in_chunks_equal_single_tokens(total, chunk, depth):
    """Two groups of two heads; runs begin anywhere in a chunk."""
    rng = np.random.default_rng(total)
    q, k = rng.standard_normal((2, B, total, 2, K)).astype(np.float32)
    v = rng.standard_normal((B, total, 4, V)).astype(np.float32)
    g = -np.exp(rng.uniform(-9, 4, (B, total, 4))).astype(np.float32)
    state, parent, tree = _state_and_tree(total, depth, (B, 4, K, V))
    weight = rng.standard_normal(v.shape)

    def chunked(inputs):
        y, end = state_space.run(*inputs, state, tree, chunk=chunk)
        return jnp.sum(y * weight), (y, end)

    def single(inputs):
        y, end = _scanned(state_space.step, inputs, state, parent)
        return jnp.sum(y * weight), (y, end)

    ours, theirs = (jax.jit(jax.grad(f, has_aux=True))((q, k, v, g)) for f in (chunked, single))
    results = [(*gradients, *read[: 1 if depth else 2]) for gradients, read in (ours, theirs)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())
    np.testing.assert_allclose(ours[1][0], theirs[1][0], atol=2e-6 * np.abs(theirs[1][0]).max())


def test_convolutions_go_along_paths():
    parent, tree = _rows(60)
    rng = np.random.default_rng(5)
    x, taps = rng.standard_normal((B, 60, 3)), rng.standard_normal((3, 4))
    expected = np.zeros(x.shape)
    for row, t in np.ndindex(B, 60):
        at = t
        for tap in taps.T[::-1]:
            expected[row, t] += tap * x[row, at] if at >= 0 else 0
            at = parent[row, at] if at >= 0 else -1
    got = convolution.over_rows(jnp.asarray(x), jnp.asarray(taps), tree)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("depth", range(5))
def test_trees_of_rows(depth):
    """Parents and levels, of trees at random and of rows that are padded on either side."""
    for seed in range(6):
        parent, _, until = rows(seed, depth)
        levels = np.zeros(len(parent), int)
        runs = np.flatnonzero(np.diff(until, prepend=-1))
        for t in runs[parent[runs] >= 0]:
            levels[t] = levels[parent[t]] + 1
            levels[t : t + 1 + np.argmax(np.diff(until[t:], append=-1) != 0)] = levels[t]
        tree = trees.of_rows(jnp.asarray(until)[None], count_levels(until))
        used = until > 0
        assert np.array_equal(np.asarray(tree.parent)[0, used], parent[used])
        assert tree.level.shape[-1] == 1 + levels.max()
        assert np.array_equal(np.argmax(tree.level[0], -1)[used], levels[used])
    until = jnp.array([[3, 3, 3, 5, 5, 0, 0], [0, 7, 7, 7, 7, 7, 7]])
    parent = trees.of_rows(until, 1).parent
    assert parent.tolist() == [[-1, 0, 1, -1, 3, -1, -1], [-1, -1, 1, 2, 3, 4, 5]]


HYBRID = FAMILIES["hybrid"]


@functools.cache
def _params(family="hybrid"):
    return decoder.init(FAMILIES[family], jax.random.key(0))


@pytest.mark.sample(1, broad=2)
@pytest.mark.exact("a packed tree of recurrent layers gives what its paths give apart, 3e-5")
@pytest.mark.parametrize("remat", ["full", "none"])
@pytest.mark.parametrize(
    "family", ["hybrid", "convolution", "mamba", "parts", "beside", "channels"]
)
def test_a_tree_gives_what_its_paths_give_apart(family, remat):
    """Two trees in a row of several chunks, of up to three levels; gradients to 1e-4.

    The first row holds them, the others a path each.
    """
    config, rng = FAMILIES[family], np.random.default_rng(0)
    sizes = [(70, -1), (9, 0), (30, 0), (3, 2), (40, 2), (1, 0), (20, -1), (6, 6), (6, 6)]
    total, leaves = sum(size for size, _ in sizes), (1, 3, 4, 5, 7, 8)
    paths: list[np.ndarray] = []
    for run, (size, above) in enumerate(sizes):
        start = sum(size for size, _ in sizes[:run])
        before = paths[above] if above >= 0 else np.zeros(0, int)
        paths.append(np.concatenate([before, np.arange(start, start + size)]))
    tokens, places, until = np.zeros((3, 1 + len(leaves), total), np.int32)
    weights = np.zeros((2, 1 + len(leaves), total, 16), np.float32)
    tokens[0], weights[0, 0] = rng.integers(0, 31, total), rng.standard_normal((total, 16))
    for path in paths:
        places[0, path] = np.arange(len(path))
        until[0, path] = np.maximum(until[0, path], path[-1] + 1)
    first = np.ones(total, bool)
    for row, path in enumerate([paths[run] for run in leaves], 1):
        tokens[row, : len(path)], places[row] = tokens[0, path], np.arange(total)
        until[row, : len(path)] = len(path)
        weights[1, row, : len(path)] = weights[0, 0, path] * first[path][:, None]
        first[path] = False
    assert count_levels(until) == 3 and not first.any()

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def slopes(params, weights):
        rows = (tokens, places, until)
        hidden = decoder.hidden(config, params, *rows, levels=4, remat=remat)
        return jnp.sum(hidden * weights), hidden

    whole, states = slopes(_params(family), weights[0])
    apart, _ = slopes(_params(family), weights[1])
    # in float64 both sides of "hybrid" are equal to 1e-14; in fp32 each is off from that by 1e-6
    # (rms), and by 2e-5 at one token: two heads of the last mixer read little of their state there
    # (rms 5e-4, where 2e-2 is usual), and their norm divides by that
    for row, path in enumerate([paths[run] for run in leaves], 1):
        np.testing.assert_allclose(states[0, path], states[row, : len(path)], atol=3e-5)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(np.abs(b).max(), 1e-3))


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
