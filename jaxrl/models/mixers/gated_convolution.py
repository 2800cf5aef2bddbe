"""The gated short convolution of LFM2 (Liquid AI 2025).

Formula: `output(c * convolution(b * x))`, where b, c and x are projections of a token
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Layout, _matrix
from jaxrl.models.linear import project
from jaxrl.models.mixers import convolution
from jaxrl.models.mixers.memory import LastInputs


class GatedConvolution(nnx.Module):
    """Parameters of a convolutional layer's mixer, and its passes."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        d, depth = config.hidden_size, 2 * config.num_layers
        self.bcx = _matrix(rngs, (d, 3 * d), ("embed", "channels"))
        self.conv = convolution.taps(rngs, d, config.convolution)
        self.output = _matrix(rngs, (d, d), ("channels", "embed"), depth=depth)

    def train(self, x: jax.Array, segment: jax.Array, layout: Layout) -> jax.Array:
        """Rows [B, T, D] of segments [B, T], which do not see each other, to the same."""

        def core(taps: jax.Array, *rows: jax.Array) -> jax.Array:
            x, segment = rows
            return convolution.over_rows(x, taps, segment)

        x, c = self._project(x)
        return self._finish(layout.by_rows(core)(self._taps(), x, segment), c)

    def extend(
        self, x: jax.Array, memory: LastInputs, real: jax.Array
    ) -> tuple[jax.Array, LastInputs]:
        """The next tokens [S, T, D] of sequences, to the same, and what is then remembered.

        The tokens that are `real` [S, T] come first in their rows; the others change nothing.
        """
        x, c = self._project(x)
        count = jnp.sum(real, axis=1)
        y, inputs = convolution.over_pieces(x, self._taps(), memory.inputs, count)
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
