"""The recurrence of Mamba-2: a token at a time, and in chunks.

A head's state `S` [K, V] decays at every token and takes in the token's value under its key:

    S = exp(g) S + k v;  y = q S

Paper: Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
Structured State Space Duality", where q, k and v are called C, B and x
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.models.mixers import tree as trees
from jaxrl.models.mixers.tree import Tree

CHUNK = 64
"""Tokens that are computed together."""

_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def step(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One token of each row, in fp32.

    Args:
      q, k: [B, G, K]; each group serves an equal run of heads.
      v: [B, H, V]. A token of g = 0 and v = 0 leaves the state as it is.
      g: [B, H], logarithm of the decay; at most 0.
      state: [B, H, K, V].

    Returns:
      What the token reads, [B, H, V], and the state after it.
    """
    q, k = (jnp.repeat(a, v.shape[1] // a.shape[1], axis=1) for a in (q, k))
    state = state * jnp.exp(g)[..., None, None] + k[..., None] * v[:, :, None]
    return _einsum("bhk,bhkv->bhv", q, state), state


def run(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    state: jax.Array,
    tree: Tree | None = None,
    *,
    chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Rows of tokens in chunks, in fp32: what `step` gives token by token.

    Args:
      q, k: [B, T, G, K].
      v: [B, T, H, V].
      g: [B, T, H], see `step`.
      state: [B, H, K, V], before the first token, where there is no tree.
      tree: of the rows, each from a state of zeros; None: each token continues the one before.
      chunk: static; how many tokens are computed together.

    Returns:
      What the tokens read, [B, T, H, V], and the state after the last one, where there is no tree.
    """
    rows, total, heads = v.shape[:3]
    groups = q.shape[2]
    chunk = min(chunk, total)
    q, k, v, g = (trees.in_chunks(a, chunk) for a in (q, k, v, g))
    # heads [..., G, H / G, C, ...] by the group that serves them
    v, g = (a.reshape(*a.shape[:2], groups, -1, *a.shape[3:]) for a in (v, g))
    parts, state = trees.begin(tree, state, total, chunk)

    def advance(state: jax.Array, xs: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, g, parts = xs
        from_start, between = trees.decays(g, parts.sees, branching=parts.stays.shape[-1] > 1)
        reach = from_start[..., None] * parts.enters[:, None, None]
        scores = _einsum("bgck,bgdk->bgcd", q, k)[:, :, None] * between
        y = _einsum("bghcd,bghdv->bghcv", scores, v)
        read = _einsum("bgck,bghmkv->bghmcv", q, state)
        y = y + jnp.sum(read * jnp.moveaxis(reach, -1, -2)[..., None], axis=3)
        left = _einsum("bmc,bghcd->bghmd", parts.last, between)[..., None] * v[:, :, :, None]
        added = _einsum("bgck,bghmcv->bghmkv", k, left)
        decay = parts.stays[:, None, None] + _einsum("bmc,bghcl->bghml", parts.last, reach)
        return _einsum("bghml,bghlkv->bghmkv", decay, state) + added, y

    shape = state.shape
    state = state.reshape(rows, groups, heads // groups, *shape[2:])
    state, y = jax.lax.scan(advance, state, (q, k, v, g, parts))
    y = y.reshape(-1, rows, heads, *y.shape[4:])
    return trees.out_of_chunks(y, total), state.reshape(shape)[:, :, 0]
