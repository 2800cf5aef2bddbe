"""A recurrent layer: a mixer with a state and an MLP, each added to the residual stream."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Layout, Norm, Routing, make_mlp
from jaxrl.models.mixers import delta_net, gated_convolution, mamba
from jaxrl.models.mixers.delta_net import DeltaNet
from jaxrl.models.mixers.gated_convolution import GatedConvolution
from jaxrl.models.mixers.mamba import Mamba
from jaxrl.models.mixers.memory import Recurrent, State


class RecurrentBlock(nnx.Module):
    """One layer with a mixer in place of attention."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        mixer = DeltaNet if config.delta else Mamba if config.mamba else GatedConvolution
        self.scale = config.residual_scale
        self.mixer = mixer(config, rngs=rngs)
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
        x = self._add(x, self.mixer.train(self.mixer_norm(x), segment, layout))
        if routed:
            y, routing = self.mlp.routed(self.mlp_norm(x), layout)
            return self._add(x, y), routing
        return self._add(x, self.mlp(self.mlp_norm(x), layout)), None

    def extend(
        self, x: jax.Array, memory: State, real: jax.Array, layout: Layout
    ) -> tuple[jax.Array, State]:
        """As `train` for the next tokens [S, T, D], and what is then remembered.

        Tokens that are not `real` [S, T] change nothing, wherever in a row they stand.
        """
        y, memory = self._mix(self.mixer_norm(x), memory, real)
        x = self._add(x, y)
        return self._add(x, self.mlp(self.mlp_norm(x), layout)), memory

    def _add(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x + (y if self.scale == 1 else y * self.scale)

    def _mix(self, x: jax.Array, memory: State, real: jax.Array) -> tuple[jax.Array, State]:
        if x.shape[1] == 1:
            return self.mixer.extend(x, memory, real)
        order = jnp.argsort(~real, axis=1, stable=True)  # real tokens first
        back = jnp.argsort(order, axis=1)

        def take(a: jax.Array, index: jax.Array) -> jax.Array:
            return jnp.take_along_axis(a, index[..., None], axis=1)

        y, memory = self.mixer.extend(take(x, order), memory, jnp.sort(~real, axis=1) == 0)
        return take(y, back), memory


def axes(memory: State) -> State:
    """Logical axis names of what a layer remembers."""
    return delta_net.axes() if isinstance(memory, Recurrent) else gated_convolution.axes()


def empty(config: DecoderConfig, slots: int) -> State:
    """What a layer remembers at the start of `slots` sequences."""
    mixer = delta_net if config.delta else mamba if config.mamba else gated_convolution
    return mixer.empty(config, slots)
