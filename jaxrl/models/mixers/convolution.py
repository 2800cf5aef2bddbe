"""A short causal convolution over the tokens of a sequence, each channel on its own; and the mixer
of LFM2, which is one between two gates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Layout, _matrix
from jaxrl.models.linear import project
from jaxrl.models.mixers.memory import LastInputs
from jaxrl.models.mixers.tree import Take, Tree


def taps(rngs: nnx.Rngs, channels: int, count: int) -> nnx.Param:
    """Fresh weights [channels, 1, count] fp32, the newest token's last."""
    value = jax.random.normal(rngs.params(), (channels, 1, count)) * count**-0.5
    return nnx.Param(value, axes=("channels", "single", "taps"), inputs=0, batch=0)


def over_rows(x: jax.Array, taps: jax.Array, tree: Tree) -> jax.Array:
    """Of whole rows: a token sees the last ones of its own path.

    Args:
      x: [B, T, C].
      taps: [C, W] fp32, the newest token's last.
      tree: of the rows.

    Returns:
      [B, T, C] fp32.
    """
    x = x.astype(jnp.float32)  # also for the sum of gradients where a path branches
    at = tree.parent
    y = x * taps[:, -1]
    for back in range(1, taps.shape[1]):
        if tree.level.shape[-1] == 1:  # a path is a stretch of the row
            earlier = jnp.pad(x, ((0, 0), (back, 0), (0, 0)))[:, : x.shape[1]]
        else:
            earlier = jnp.take_along_axis(x, jnp.maximum(at, 0)[..., None], axis=1)
        y = y + jnp.where(at[..., None] >= 0, earlier, 0) * taps[:, -1 - back]
        at = jnp.where(at >= 0, jnp.take_along_axis(tree.parent, jnp.maximum(at, 0), axis=1), -1)
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


class GatedConvolution(nnx.Module):
    """The mixer of a convolutional layer of LFM2 (Liquid AI 2025): parameters and passes.

    Formula: `output(c * convolution(b * x))`, where b, c and x are projections of a token
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        d, depth = config.hidden_size, 2 * config.num_layers
        self.bcx = _matrix(rngs, (d, 3 * d), ("embed", "channels"))
        self.conv = taps(rngs, d, config.convolution)
        self.output = _matrix(rngs, (d, d), ("channels", "embed"), depth=depth)

    def train(self, x: jax.Array, tree: Tree, layout: Layout) -> jax.Array:
        """Rows [B, T, D] of trees, to the same."""

        def core(take: Take, taps: jax.Array, tree: Tree, x: jax.Array) -> jax.Array:
            return over_rows(take(x), take(taps.T[None])[0].T, tree)

        x, c = self._project(x)
        return self._finish(layout.by_heads(core, x.shape[-1], self._taps(), tree, x), c)

    def extend(
        self, x: jax.Array, memory: LastInputs, real: jax.Array
    ) -> tuple[jax.Array, LastInputs]:
        """The next tokens [S, T, D] of sequences, to the same, and what is then remembered.

        The tokens that are `real` [S, T] come first in their rows; the others change nothing.
        """
        x, c = self._project(x)
        count = jnp.sum(real, axis=1)
        y, inputs = over_pieces(x, self._taps(), memory.inputs, count)
        return self._finish(y, c), LastInputs(inputs)

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What is convolved, and the gate on what comes out, each [B, T, D]."""
        b, c, x = jnp.split(project(x, self.bcx.get_value()), 3, axis=-1)
        return b * x, c

    def _taps(self) -> jax.Array:
        return self.conv[...][:, 0].astype(jnp.float32)

    def _finish(self, y: jax.Array, c: jax.Array) -> jax.Array:
        return project(c * y.astype(c.dtype), self.output.get_value())


def axes() -> LastInputs:
    """Logical axis names of what a layer remembers."""
    return LastInputs(("batch", None, None))


def empty(config: DecoderConfig, slots: int) -> LastInputs:
    """What a layer remembers at the start of `slots` sequences."""
    shape = (slots, config.convolution - 1, config.hidden_size)
    return LastInputs(jnp.zeros(shape, config.dtype))
