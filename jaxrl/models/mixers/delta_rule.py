"""The gated delta rule: a token at a time, and in chunks for training.

A head's state `S` [K, V] maps keys to values. A token decays it, and moves what its key maps to
towards its value:

    S = exp(g) S;  S = S + k (beta (v - k S));  y = q S

Paper: Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule"
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

CHUNK = 64
"""Tokens that are computed together."""

_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def step(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One token of each row, in fp32.

    Args:
      q, k: [B, H, K].
      v: [B, H, V].
      g: [B, H], logarithm of the decay, or [B, H, K], of that of each feature; at most 0.
      beta: [B, H], how far to move, in [0, 1]. A token of g = beta = 0 leaves the state as it is.
      state: [B, H, K, V].

    Returns:
      What the token reads, [B, H, V], and the state after it.
    """
    state = state * jnp.exp(g).reshape(*g.shape[:2], -1, 1)
    change = (v - _einsum("bhk,bhkv->bhv", k, state)) * beta[..., None]
    state = state + k[..., None] * change[:, :, None]
    return _einsum("bhk,bhkv->bhv", q, state), state


def run(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    segment: jax.Array,
    *,
    chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Rows of tokens in chunks, in fp32: what `step` gives token by token.

    Within a chunk the changes of all tokens are the solution of one triangular system. A state goes
    from chunk to chunk.

    Args:
      q, k: [B, T, H, K].
      v: [B, T, H, V].
      g, beta: [B, T, H], see `step`.
      state: [B, H, K, V], before the tokens of segment 0.
      segment: [B, T] int32, not decreasing along a row; every segment but 0 starts from zeros.
      chunk: static; how many tokens are computed together.

    Returns:
      What the tokens read, [B, T, H, V], and the state after the last one.
    """
    total = q.shape[1]
    chunk = min(chunk, total)
    q, k, v, g, beta = (in_chunks(a, chunk) for a in (q, k, v, g, beta))
    segment, carried = segments_in_chunks(segment, chunk)
    segment, carried = segment[:, :, None], carried[:, :, None].astype(q.dtype)
    from_start, between = decays(g, segment)

    keys = k * beta[..., None]
    system = jnp.tril(_einsum("nbhck,nbhdk->nbhcd", keys, k) * between, -1)
    reach = (from_start * carried)[..., None]
    right = jnp.concatenate([v * beta[..., None], keys * reach], axis=-1)
    solved = jax.scipy.linalg.solve_triangular(
        system + jnp.eye(chunk, dtype=system.dtype), right, lower=True, unit_diagonal=True
    )
    new, forgotten = jnp.split(solved, [v.shape[-1]], axis=-1)
    scores = _einsum("nbhck,nbhdk->nbhcd", q, k) * between
    entries = k * between[..., -1, :, None]

    def advance(state: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        new, forgotten, queries, scores, entries, left = xs
        change = new - _einsum("bhck,bhkv->bhcv", forgotten, state)
        y = _einsum("bhck,bhkv->bhcv", queries, state) + _einsum("bhcd,bhdv->bhcv", scores, change)
        state = state * left[..., None, None] + _einsum("bhck,bhcv->bhkv", entries, change)
        return state, y

    xs = (new, forgotten, q * reach, scores, entries, reach[..., -1, 0])
    state, y = jax.lax.scan(advance, state, xs)
    return out_of_chunks(y, total), state


def in_chunks(a: jax.Array, chunk: int) -> jax.Array:
    """[B, T, H, ...] as N chunks [N, B, H, C, ...]; zeros fill the last one."""
    room = -a.shape[1] % chunk
    a = jnp.pad(a, ((0, 0), (0, room), *[(0, 0)] * (a.ndim - 2)))
    a = a.reshape(a.shape[0], -1, chunk, *a.shape[2:])
    return jnp.moveaxis(a, (1, 3), (0, 2))


def segments_in_chunks(segment: jax.Array, chunk: int) -> tuple[jax.Array, jax.Array]:
    """Segments [B, T] as chunks [N, B, C], and the tokens that the incoming state reaches."""
    segment = jnp.pad(segment, ((0, 0), (0, -segment.shape[1] % chunk)), mode="edge")
    segment = jnp.moveaxis(segment.reshape(segment.shape[0], -1, chunk), 1, 0)
    before = jnp.pad(segment[:-1, :, -1], ((1, 0), (0, 0)))
    return segment, segment == before[..., None]


def out_of_chunks(y: jax.Array, total: int) -> jax.Array:
    """What `in_chunks` made chunks of, [B, T, H, ...] for T = `total` tokens."""
    y = jnp.moveaxis(y, (0, 2), (1, 3))
    return y.reshape(y.shape[0], -1, *y.shape[3:])[:, :total]


def decays(g: jax.Array, segment: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Decay from before the chunk to each token, and from each token to each later one.

    Sums of each span, not differences of one running sum, which would cancel.

    Args:
      g: [..., H, C], logarithms.
      segment: [..., 1, C].

    Returns:
      [..., H, C], and [..., H, C, C], later token first, 0 between segments.
    """
    size = g.shape[-1]
    later = jnp.tril(jnp.ones((size, size), bool), -1)
    spans = jnp.cumsum(jnp.where(later, g[..., :, None], 0), axis=-2)
    together = (segment[..., :, None] == segment[..., None, :]) & jnp.tril(
        jnp.ones((size, size), bool)
    )
    between = jnp.exp(jnp.where(together, spans, -jnp.inf))
    return jnp.exp(jnp.cumsum(g, axis=-1)), between
