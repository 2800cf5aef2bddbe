"""A short causal convolution over the tokens of a sequence, each channel on its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


def taps(rngs: nnx.Rngs, channels: int, count: int) -> nnx.Param:
    """Fresh weights [channels, 1, count] fp32, the newest token's last."""
    value = jax.random.normal(rngs.params(), (channels, 1, count)) * count**-0.5
    return nnx.Param(value, axes=("channels", "single", "taps"), inputs=0, batch=0)


def over_rows(x: jax.Array, taps: jax.Array, segment: jax.Array) -> jax.Array:
    """Of whole rows: a token sees the last ones of its own segment.

    Args:
      x: [B, T, C].
      taps: [C, W] fp32, the newest token's last.
      segment: [B, T] int32.

    Returns:
      [B, T, C] fp32.
    """
    total = x.shape[1]
    y = x * taps[:, -1]
    for back in range(1, taps.shape[1]):
        earlier = jnp.pad(x, ((0, 0), (back, 0), (0, 0)))[:, :total]
        same = segment == jnp.pad(segment, ((0, 0), (back, 0)), constant_values=-1)[:, :total]
        y = y + jnp.where(same[..., None], earlier, 0) * taps[:, -1 - back]
    return y


def over_pieces(
    x: jax.Array, taps: jax.Array, before: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of the next tokens of sequences, after those that were seen `before`.

    Args:
      x: [S, T, C]; the first `count` tokens of a row are real.
      taps: [C, W] fp32, the newest token's last.
      before: [S, W - 1, C], the last tokens before; zeros at the start of a sequence.
      count: [S] int32.

    Returns:
      [S, T, C] fp32, and the last W - 1 real tokens.
    """
    width = taps.shape[1]
    line = jnp.concatenate([before, x.astype(before.dtype)], axis=1)
    total = x.shape[1]
    y = sum(line[:, tap : tap + total] * taps[:, tap] for tap in range(width))
    index = count[:, None] + jnp.arange(width - 1)
    return y, jnp.take_along_axis(line, index[..., None], axis=1)
