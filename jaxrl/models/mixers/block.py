"""A recurrent layer: a gated delta net and an MLP, each added to the residual stream."""

from __future__ import annotations

import jax
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Layout, Norm, Routing, make_mlp
from jaxrl.models.mixers.delta_net import DeltaNet
from jaxrl.models.mixers.memory import Recurrent


class RecurrentBlock(nnx.Module):
    """One layer with a mixer in place of attention."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.mixer = DeltaNet(config, rngs=rngs)
        self.mlp = make_mlp(config, routed=routed, rngs=rngs)
        shape, axes = (config.hidden_size,), ("embed",)
        self.mixer_norm, self.mlp_norm = Norm(config, shape, axes), Norm(config, shape, axes)

    def train(
        self, x: jax.Array, segment: jax.Array, layout: Layout, *, routed: bool
    ) -> tuple[jax.Array, Routing | None]:
        """The residual stream [B, T, D] after the layer; where `routed`, what its router did.

        Args:
          x: [B, T, D].
          segment: [B, T] int32, which sequence of the row a token belongs to.
          layout: how it lies on several devices.
          routed: static.
        """
        x = x + self.mixer.train(self.mixer_norm(x), segment, layout)
        if routed:
            y, routing = self.mlp.routed(self.mlp_norm(x), layout)
            return x + y, routing
        return x + self.mlp(self.mlp_norm(x), layout), None

    def extend(
        self, x: jax.Array, memory: Recurrent, real: jax.Array, layout: Layout
    ) -> tuple[jax.Array, Recurrent]:
        """As `train` for the next tokens [S, T, D], and what is then remembered.

        Tokens that are not `real` [S, T] change nothing.
        """
        y, memory = self.mixer.extend(self.mixer_norm(x), memory, real)
        x = x + y
        return x + self.mlp(self.mlp_norm(x), layout), memory
