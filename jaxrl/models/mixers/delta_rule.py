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

from jaxrl.models.mixers import tree as trees
from jaxrl.models.mixers.tree import Tree

CHUNK = 64
"""Tokens that are computed together."""

_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
_matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


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


@jax.custom_vjp
def solve(system: jax.Array, right: jax.Array) -> jax.Array:
    """The solution `x` of `x + system x = right`, by products of matrices.

    They suit accelerators, and XLA's own solver can wait for ever on a CPU of two threads, where it
    shares them with another of its calls (jaxlib 0.10).

    Args:
      system: [..., C, C], strictly lower triangular. Its gradient is not masked.
      right: [..., C, X].
    """
    return _matmul(_inverse(system), right)


def _inverse(system: jax.Array) -> jax.Array:
    """`(1 + system)^-1`, from that of blocks on the diagonal of 1, 2, 4, ... rows:
    of `[[A, 0], [B, D]]` it is `[[A^-1, 0], [-D^-1 B A^-1, D^-1]]`."""
    size = system.shape[-1]
    width = 1 << (size - 1).bit_length()
    room = [(0, 0)] * (system.ndim - 2) + [(0, width - size)] * 2
    system, rows = jnp.pad(system, room), 1
    inverse = jnp.ones((*system.shape[:-2], width, 1, 1), system.dtype)
    while rows < width:
        starts = range(0, width, 2 * rows)
        below = [system[..., i + rows : i + 2 * rows, i : i + rows] for i in starts]
        upper, lower = inverse[..., ::2, :, :], inverse[..., 1::2, :, :]
        corner = -_matmul(_matmul(lower, jnp.stack(below, -3)), upper)
        inverse = jnp.concatenate(
            [
                jnp.concatenate([upper, jnp.zeros_like(upper)], axis=-1),
                jnp.concatenate([corner, lower], axis=-1),
            ],
            axis=-2,
        )
        rows *= 2
    return inverse[..., 0, :size, :size]


def _solve_forward(
    system: jax.Array, right: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    inverse = _inverse(system)
    solution = _matmul(inverse, right)
    return solution, (inverse, solution)


def _solve_backward(
    residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    inverse, solution = residuals
    of_right = _matmul(jnp.swapaxes(inverse, -1, -2), gradient)
    return -_matmul(of_right, jnp.swapaxes(solution, -1, -2)), of_right


solve.defvjp(_solve_forward, _solve_backward)


def run(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    tree: Tree | None = None,
    *,
    chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Rows of tokens in chunks, in fp32: what `step` gives token by token.

    Within a chunk the changes of all tokens are the solution of one triangular system, where a
    token meets those of its own path. From chunk to chunk go the states of M levels, see `tree`.

    Args:
      q, k: [B, T, H, K].
      v: [B, T, H, V].
      g, beta: [B, T, H], see `step`.
      state: [B, H, K, V], before the first token, where there is no tree.
      tree: of the rows, each from a state of zeros; None: each token continues the one before.
      chunk: static; how many tokens are computed together.

    Returns:
      What the tokens read, [B, T, H, V], and the state after the last one, where there is no tree.
    """
    total = q.shape[1]
    chunk = min(chunk, total)
    q, k, v, g, beta = (trees.in_chunks(a, chunk) for a in (q, k, v, g, beta))
    parts, state = trees.begin(tree, state, total, chunk)
    from_start, between = trees.decays(g, parts.sees, branching=parts.stays.shape[-1] > 1)

    def by_level(keys: jax.Array, decay: jax.Array) -> jax.Array:
        """[..., C, K] and [..., C, M] as [..., C, M K], as the states of all levels are read."""
        both = decay[..., None] * keys[..., None, :]
        return both.reshape(*both.shape[:-2], -1)

    keys = k * beta[..., None]
    system = jnp.tril(_einsum("nbhck,nbhdk->nbhcd", keys, k) * between, -1)
    reach = from_start[..., None] * parts.enters[:, :, None]
    right = jnp.concatenate([v * beta[..., None], by_level(keys, reach)], axis=-1)
    new, forgotten = jnp.split(solve(system, right), [v.shape[-1]], axis=-1)
    scores = _einsum("nbhck,nbhdk->nbhcd", q, k) * between
    entries = by_level(k, _einsum("nbmc,nbhcd->nbhdm", parts.last, between))
    left = parts.stays[:, :, None] + _einsum("nbmc,nbhcl->nbhml", parts.last, reach)

    def advance(state: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        new, forgotten, queries, scores, entries, left = xs
        read = state.reshape(*state.shape[:2], -1, state.shape[-1])
        change = new - _einsum("bhcx,bhxv->bhcv", forgotten, read)
        y = _einsum("bhcx,bhxv->bhcv", queries, read) + _einsum("bhcd,bhdv->bhcv", scores, change)
        added = _einsum("bhcx,bhcv->bhxv", entries, change)
        state = _einsum("bhml,bhlkv->bhmkv", left, state) + added.reshape(state.shape)
        return state, y

    xs = (new, forgotten, by_level(q, reach), scores, entries, left)
    state, y = jax.lax.scan(advance, state, xs)
    return trees.out_of_chunks(y, total), state[:, :, 0]
