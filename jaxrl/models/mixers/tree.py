"""Trees of tokens in packed rows, for mixers that go along a row.

A row holds its tokens in depth-first order. A run is a stretch of tokens that each continue the one
before and that nothing else continues but at its end: a prompt, then each of its completions. The
level of a run is the number of runs before it on its path.

Recurrences compute a row in chunks of equal size, wherever runs begin. Within a chunk, a token
sees its own path alone. From chunk to chunk go as many states as the tree has levels: at each
level that of the last token of the path that the chunk ends in. A completion thus starts from the
state at the end of its prompt, however many chunks of other completions lie between, and the
gradients of all of them are summed there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


Take = Callable[[jax.Array], jax.Array]
"""Leaves of the entries of all heads, [B, T, H, ...], those of the heads that a device computes."""


class Tree(NamedTuple):
    """Which tokens of packed rows continue which."""

    visible_until: jax.Array
    """[B, T] int32, see `attention.tree_mask`."""
    parent: jax.Array
    """[B, T] int32, cell of the token that each one continues; -1: none."""
    level: jax.Array
    """[B, T, M] bool, one-hot: the level of a token's run."""
    before: jax.Array
    """[B, T, M] bool, one-hot: the level of the token that it continues; all false: none."""


class PathChunks(NamedTuple):
    """The same of N chunks of C tokens; the leaves are in fp32, of 0 and 1."""

    sees: jax.Array
    """[N, B, C, C], whether a token sees another of its chunk, or is it; the later one first."""
    enters: jax.Array
    """[N, B, C, M], one-hot: the level whose state reaches a token; all 0: none."""
    last: jax.Array
    """[N, B, M, C], one-hot: the token whose state leaves the chunk at a level; all 0: none."""
    stays: jax.Array
    """[N, B, M, M], diagonal: levels whose state is the same after the chunk."""


def of_rows(visible_until: jax.Array, levels: int) -> Tree:
    """The trees of packed rows.

    Args:
      visible_until: [B, T] int32, see `attention.tree_mask`.
      levels: static; at least those of the deepest tree, see `Packed.levels`.
    """
    rows, total = visible_until.shape
    index = jnp.arange(total)
    follows = (visible_until[:, 1:] == visible_until[:, :-1]) & (visible_until[:, 1:] > index[1:])
    follows = jnp.pad(follows, ((0, 0), (1, 0)))
    ends = jnp.pad(~follows[:, 1:], ((0, 0), (0, 1))) & (visible_until > index + 1)
    # a run that others continue is above all cells from its end to where it is seen no more
    changes = jnp.zeros((rows, total + 1), jnp.int32).at[:, 1:].add(ends)
    row = jnp.arange(rows)[:, None]
    changes = changes.at[row, jnp.where(ends, visible_until, 0)].add(-ends.astype(jnp.int32))
    depth = jnp.cumsum(changes, axis=1)[:, :total]
    parent = jnp.where(follows, index - 1, -1)
    for level in range(levels - 1):
        latest = jax.lax.cummax(jnp.where(depth == level, index, -1), axis=1)
        parent = jnp.where(~follows & (depth == level + 1), latest, parent)
    one_hot = functools.partial(jax.nn.one_hot, num_classes=levels, dtype=bool)
    return Tree(
        visible_until, parent, one_hot(depth), one_hot(jnp.where(follows, depth, depth - 1))
    )


def along_rows(
    function: Callable[..., jax.Array], heads: int, weights: Any, tree: Tree, *rows: jax.Array
) -> jax.Array:
    """What a mixer reads along rows of tokens, on one device.

    Args:
      function: of `take`, the weights, the tree and the rows; gives [B, T, H, ...] for the heads
        that `take` leaves of arrays [B, T, H, ...] or, where a group of heads shares an entry,
        [B, T, G, ...]. Here it leaves all.
      heads: H.
      weights: a pytree.
      tree: of the rows.
      rows: arrays [B, T, ...].

    Returns:
      [B, T, H, ...].
    """
    return function(lambda entries: entries, weights, tree, *rows)


def _one_run(rows: int, total: int) -> Tree:
    """Rows [B, T] of one run each, that continues what came before the row."""
    everywhere = jnp.ones((rows, total, 1), bool)
    until = jnp.full((rows, total), jnp.iinfo(jnp.int32).max)
    return Tree(
        until, jnp.broadcast_to(jnp.arange(-1, total - 1), until.shape), everywhere, everywhere
    )


def begin(
    tree: Tree | None, state: jax.Array, total: int, size: int
) -> tuple[PathChunks, jax.Array]:
    """Chunks of rows [B, T], and the states [B, H, M, K, V] of all levels before the first.

    Args:
      tree: of the rows; None: each token continues the one before.
      state: [B, H, K, V], that the first tokens continue where there is no tree.
      total: T.
      size: of a chunk.
    """
    tree = _one_run(state.shape[0], total) if tree is None else tree
    state = jnp.repeat(state[:, :, None], tree.level.shape[-1], axis=2)
    return chunks(tree, size), state


def chunks(tree: Tree, size: int) -> PathChunks:
    """The tree's part in each chunk of `size` tokens; the last one is filled up."""
    count = -(-tree.parent.shape[1] // size)

    def cut(a: jax.Array) -> jax.Array:
        a = jnp.pad(a, ((0, 0), (0, -a.shape[1] % size), *[(0, 0)] * (a.ndim - 2)), mode="edge")
        return jnp.moveaxis(a.reshape(a.shape[0], count, size, *a.shape[2:]), 1, 0)

    cell = jnp.arange(count * size).reshape(count, 1, size)
    until, level, before = cut(tree.visible_until), cut(tree.level), cut(tree.before)
    later, earlier = cell[..., :, None], cell[..., None, :]
    sees = (earlier == later) | ((earlier < later) & (until[..., None, :] > later))
    first = jnp.argmax(sees, axis=-1)  # of a token's path in its chunk
    enters = jnp.take_along_axis(before, first[..., None], axis=2)
    path = jnp.swapaxes(level & sees[:, :, -1, :, None], -1, -2)  # that the chunk ends in
    last = path & (jnp.flip(jnp.cumsum(jnp.flip(path, -1), -1), -1) == 1)
    stays = ~jnp.any(path, axis=-1)[..., None] & jnp.eye(level.shape[-1], dtype=bool)
    return PathChunks(*(a.astype(jnp.float32) for a in (sees, enters, last, stays)))


def in_chunks(a: jax.Array, chunk: int) -> jax.Array:
    """[B, T, H, ...] as N chunks [N, B, H, C, ...]; zeros fill the last one."""
    room = -a.shape[1] % chunk
    a = jnp.pad(a, ((0, 0), (0, room), *[(0, 0)] * (a.ndim - 2)))
    a = a.reshape(a.shape[0], -1, chunk, *a.shape[2:])
    return jnp.moveaxis(a, (1, 3), (0, 2))


def out_of_chunks(y: jax.Array, total: int) -> jax.Array:
    """What `in_chunks` made chunks of, [B, T, H, ...] for T = `total` tokens."""
    y = jnp.moveaxis(y, (0, 2), (1, 3))
    return y.reshape(y.shape[0], -1, *y.shape[3:])[:, :total]


def decays(g: jax.Array, sees: jax.Array, *, branching: bool) -> tuple[jax.Array, jax.Array]:
    """Decay from before the chunk to each token, and from each token to each later one.

    Sums of each span, not differences of one running sum, which would cancel.

    Args:
      g: [..., C], logarithms; the leading axes are those of `sees` and further ones.
      sees: [..., C, C], see `PathChunks`.
      branching: static; whether a path may leave out tokens between its own.

    Returns:
      [..., C], and [..., C, C], later token first, 0 where it does not see the other.
    """
    size, shape = g.shape[-1], g.shape
    g = g.reshape(*sees.shape[:-2], -1, size)
    after = jnp.where(jnp.tril(jnp.ones((size, size), bool), -1), g[..., :, None], 0)
    spans = _einsum("...cm,...fmd->...fcd", sees, after) if branching else jnp.cumsum(after, -2)
    between = jnp.exp(jnp.where(sees[..., None, :, :] > 0, spans, -jnp.inf))
    since_start = _einsum("...cm,...fm->...fc", sees, g) if branching else jnp.cumsum(g, -1)
    return jnp.exp(since_start).reshape(shape), between.reshape(*shape, size)
