"""Masks as vectors: equal to the dense mask of the definition, and never laid out whole."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.models import attention, decoder
from jaxrl.models.config import DecoderConfig

T = 300


def rows(seed: int, depth: int) -> tuple[np.ndarray, ...]:
    """A row of random trees: the parent of each token (-1: none), positions, visible_until."""
    rng = np.random.default_rng(seed)
    parent, position, until = (np.full(T, fill) for fill in (-1, 0, 0))

    def grow(start: int, stop: int, above: int, level: int) -> None:
        """Fill [start, stop) with nodes below the token `above`, one after another."""
        while start < stop:
            end = int(rng.integers(start, stop)) + 1 if level else stop
            length = int(rng.integers(1, end - start + 1)) if level < depth else end - start
            for t in range(start, start + length):
                parent[t] = above if t == start else t - 1
                position[t] = 0 if parent[t] < 0 else position[parent[t]] + 1
            until[start : start + length] = end
            grow(start + length, end, start + length - 1, level + 1)
            start = end

    used = int(rng.integers(T // 2, T))  # padding behind it
    for start, stop in ((0, used // 3), (used // 3, used)):
        grow(start, stop, -1, 0)
    return parent, position, until


def dense(parent: np.ndarray, position: np.ndarray, used: np.ndarray, window: int) -> np.ndarray:
    """By the definition: a token sees itself and its ancestors, as far as the window reaches."""
    seen = np.zeros((T, T), bool)
    for t in np.flatnonzero(used):
        s = t
        while s >= 0:
            seen[t, s] = position[t] - position[s] < window
            s = parent[s]
    return seen


@functools.partial(jax.jit, static_argnames=("kernel", "ordered"))
def attend(q, k, v, visible, positions, window, *, kernel, ordered):
    mask = attention.tree_mask(visible, positions).replace(window=window, ordered=ordered)
    return attention.attend(q, k, v, mask, kernel=kernel), mask.dense(T)


@pytest.mark.broad
@pytest.mark.exact("attention under a mask of vectors equals float64 attention under the dense one")
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(0, 3),
    window=st.sampled_from([1, 7, 130, 2**30]),
    ordered=st.booleans(),
)
def test_any_tree_under_any_window(seed, depth, window, ordered):
    parent, position, until = rows(seed, depth)
    used = until > 0
    expected = dense(parent, position, used, window)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(1, T, heads, 4)) for heads in (2, 1, 1))
    got, mask = attend(
        *(x.astype(np.float32) for x in (q, k, v)),
        until[None],
        position[None],
        np.int32(window),
        kernel="xla",
        ordered=ordered,
    )
    np.testing.assert_array_equal(mask[0, used], expected[used])
    scores = np.einsum("qnh,sh->nqs", q[0], k[0, :, 0]) / 2
    weights = np.where(expected, np.exp(scores), 0.0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    y = np.einsum("nqs,sh->qnh", weights, v[0, :, 0])
    np.testing.assert_allclose(got[0, used], y[used], atol=1e-5)


def sizes(jaxpr: Any) -> Iterator[tuple[int, Any]]:
    """Sizes and types of all that a program computes, in what it calls too but not in kernels."""
    for eqn in jaxpr.eqns:
        for x in eqn.outvars:
            yield getattr(x.aval, "size", 0), getattr(x.aval, "dtype", None)
        if eqn.primitive.name == "pallas_call":
            continue
        for value in jax.tree.leaves(
            list(eqn.params.values()),
            is_leaf=lambda x: isinstance(x, jax.extend.core.Jaxpr | jax.extend.core.ClosedJaxpr),
        ):
            value = getattr(value, "jaxpr", value)
            if isinstance(value, jax.extend.core.Jaxpr):
                yield from sizes(value)


LONG = 16_384


@pytest.mark.parametrize("kernel", ["xla", "cudnn", "splash"])
def test_masks_are_of_a_block_at_a_time(kernel, monkeypatch):
    """Nothing logical is larger than 2048 queries by all keys, and the backward keeps none."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: False)
    qkv = [jax.ShapeDtypeStruct((1, LONG, heads, 16), jnp.bfloat16) for heads in (1, 1, 1)]
    vector = jax.ShapeDtypeStruct((1, LONG), jnp.int32)

    def run(q, k, v, visible, positions):
        mask = attention.tree_mask(visible, positions).replace(window=jnp.int32(100))
        return attention.attend(q, k, v, mask, kernel=kernel, scale=0.1, platform="tpu")

    def loss(*args):
        return jnp.sum(run(*args).astype(jnp.float32))

    gradient = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*qkv, vector, vector)
    logical = [size for size, dtype in sizes(gradient.jaxpr) if dtype == jnp.bool_]
    assert max(logical) <= 2048 * LONG

    def saved(*args):
        return jax.vjp(lambda *x: run(*x, *args[3:]), *args[:3])[1]

    kept = jax.tree.leaves(jax.eval_shape(saved, *qkv, vector, vector))
    vectors = [x.size for x in kept if not jnp.issubdtype(x.dtype, jnp.floating)]
    assert max(vectors, default=0) <= 2 * LONG
    if kernel != "xla":  # which keeps its scores
        assert max(x.size for x in kept) <= 2 * 128 * LONG


def test_memory_of_a_long_row():
    """Windows store no mask of the row, and of the scores one block is held at a time."""
    length = 4096
    vector = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def temporary(**changes: Any) -> float:
        config = DecoderConfig(19, 8, 8, 2, 1, 1, 8, **changes)
        params = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))
        run = jax.jit(functools.partial(decoder.hidden, config))
        compiled = run.lower(params, vector, vector, vector).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole = length * length * 4  # of one head's scores
    plain = temporary()
    assert plain < whole
    assert (
        temporary(sliding_window=64, local_layers=(True, False)) < plain + whole / 8
    )  # a mask of bytes: / 4
