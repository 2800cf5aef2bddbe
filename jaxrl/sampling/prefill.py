"""Prefill: the caches of prompts, each read once for all the slots that begin with it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder
from jaxrl.sampling.decode import extend
from jaxrl.sampling.slots import Caches, Models, constrain_caches, cut, parts
from jaxrl.types import Params


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def empty_caches(models: Models, rows: int, length: int) -> Caches:
    """Caches of `rows` sequences of up to `length` tokens."""
    return constrain_caches(models, tuple(decoder.empty_cache(m, rows, length) for m in models))


@functools.partial(
    jax.jit, static_argnames=("models", "window", "from_start"), donate_argnames="caches"
)
def read(
    models: Models,
    params: tuple[Params, ...],
    caches: Caches,
    tokens: jax.Array,
    positions: jax.Array,
    *,
    window: int,
    from_start: bool,
) -> Caches:
    """Caches [R, ...] after tokens [R, T] at `positions` [R, T]; padding lies beyond the cache.

    `window` and `from_start` are those of `decoder.extend`.
    """
    return extend(models, params, tokens, positions, caches, window, from_start)[1]


def prefill(
    models: Models,
    params: tuple[Params, ...],
    tokens: np.ndarray,
    length: np.ndarray,
    *,
    piece: int,
) -> Caches:
    """Caches of prompts but for their last tokens, [B, ...].

    As few rows and positions are computed as buckets allow. Decoding reads the last token, with
    which it samples the next: to read a token twice would change a recurrent state.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      tokens: [B, P] int32, padded on the right.
      length: [B] int32; in each of the `parts`, rows of length 0 come last.
      piece: most tokens a row in one pass: attention then needs memory for piece x P scores.
    """
    total, width = tokens.shape
    count = parts(models, total)
    most = int(np.count_nonzero(cut(length, count), axis=1).max())
    used = min(round_up(most, 1), total // count)
    tokens, length = (cut(a, count)[:, :used].reshape(-1, *a.shape[1:]) for a in (tokens, length))
    index = np.arange(width, dtype=np.int32)
    positions = np.where(index < length[:, None] - 1, index, width).astype(np.int32)
    caches = empty_caches(models, count * used, width)
    step = min(piece, round_up(int(length.max()), 16))
    for start in range(0, int(length.max()), step):
        part = slice(start, min(start + step, width))
        window = min(round_up(part.stop, step), width)
        caches = read(
            models,
            params,
            caches,
            tokens[:, part],
            positions[:, part],
            window=window,
            from_start=start == 0,
        )
    return caches if count * used == total else _fill_up(models, caches, total)


def work_of(lengths: Sequence[int], rows: int, piece: int) -> tuple[int, int]:
    """What reading prompts of these lengths takes, `rows` of them at a time.

    Returns:
      Passes of at most `piece` positions of each row, and positions that they compute in all,
      padding included.
    """
    passes = positions = 0
    for first in range(0, len(lengths), rows):
        part = lengths[first : first + rows]
        step = min(piece, round_up(max(part), 16))
        count = -(-max(part) // step)
        passes, positions = passes + count, positions + len(part) * step * count
    return passes, positions


@functools.partial(jax.jit, static_argnames=("models", "total"))
def _fill_up(models: Models, caches: Caches, total: int) -> Caches:
    """Caches [total, ...]: those given, and empty rows at the end of each part."""
    count = parts(models, total)

    def fill(a: jax.Array) -> jax.Array:
        room = (total - a.shape[0]) // count
        padded_parts = jnp.pad(cut(a, count), ((0, 0), (0, room), *[(0, 0)] * (a.ndim - 1)))
        return padded_parts.reshape(total, *a.shape[1:])

    return constrain_caches(models, jax.tree.map(fill, caches))
