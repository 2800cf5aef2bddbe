"""Layers of hybrids: a mixer with a state and an MLP, or one part alone, added to the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.attention import Mask
from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import (
    Attention,
    Block,
    Layout,
    Memory,
    Norm,
    Queries,
    Routing,
    make_mlp,
)
from jaxrl.models.mixers import delta_net, gated_convolution, mamba
from jaxrl.models.mixers.delta_net import DeltaNet
from jaxrl.models.mixers.gated_convolution import GatedConvolution
from jaxrl.models.mixers.mamba import Mamba
from jaxrl.models.mixers.memory import Recurrent, State


def _norm(config: DecoderConfig) -> Norm:
    return Norm(config, (config.hidden_size,), ("embed",))


Mixer = DeltaNet | GatedConvolution | Mamba


def _mixer(config: DecoderConfig) -> tuple[type[Mixer], Callable[[DecoderConfig, int], State]]:
    """The mixer of a decoder's recurrent layers, and what makes its state."""
    if config.delta:
        return DeltaNet, delta_net.empty
    if config.mamba:
        return Mamba, mamba.empty
    return GatedConvolution, gated_convolution.empty


class RecurrentBlock(nnx.Module):
    """One layer with a mixer in place of attention."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.scale = config.residual_scale
        self.mixer = _mixer(config)[0](config, rngs=rngs)
        self.mlp = make_mlp(config, routed=routed, rngs=rngs)
        self.mixer_norm, self.mlp_norm = _norm(config), _norm(config)

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
        return self._transform(x, layout, routed=routed)

    def extend(
        self, x: jax.Array, memory: State, real: jax.Array, layout: Layout
    ) -> tuple[jax.Array, State]:
        """As `train` for the next tokens [S, T, D], and what is then remembered.

        Tokens that are not `real` [S, T] change nothing, wherever in a row they stand.
        """
        y, memory = self._mix(self.mixer_norm(x), memory, real)
        return self._transform(self._add(x, y), layout, routed=False)[0], memory

    def _add(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x + (y if self.scale == 1 else y * self.scale)

    def _transform(
        self, x: jax.Array, layout: Layout, *, routed: bool
    ) -> tuple[jax.Array, Routing | None]:
        """The stream after the MLP."""
        if routed:
            y, routing = self.mlp.routed(self.mlp_norm(x), layout)
            return self._add(x, y), routing
        return self._add(x, self.mlp(self.mlp_norm(x), layout)), None

    def _mix(self, x: jax.Array, memory: State, real: jax.Array) -> tuple[jax.Array, State]:
        if x.shape[1] == 1:
            return self.mixer.extend(x, memory, real)
        order = jnp.argsort(~real, axis=1, stable=True)  # real tokens first
        back = jnp.argsort(order, axis=1)

        def take(a: jax.Array, index: jax.Array) -> jax.Array:
            return jnp.take_along_axis(a, index[..., None], axis=1)

        y, memory = self.mixer.extend(take(x, order), memory, jnp.sort(~real, axis=1) == 0)
        return take(y, back), memory


class MixerLayer(RecurrentBlock):
    """A mixer without an MLP."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.scale = config.residual_scale
        self.mixer, self.mixer_norm = _mixer(config)[0](config, rngs=rngs), _norm(config)

    def _transform(
        self, x: jax.Array, layout: Layout, *, routed: bool
    ) -> tuple[jax.Array, Routing | None]:
        return x, None


class MLPLayer(RecurrentBlock):
    """An MLP alone, dense or routed."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.scale = config.residual_scale
        self.mlp, self.mlp_norm = make_mlp(config, routed=routed, rngs=rngs), _norm(config)

    def train(
        self, x: jax.Array, segment: jax.Array, layout: Layout, *, routed: bool
    ) -> tuple[jax.Array, Routing | None]:
        """See `RecurrentBlock.train`."""
        return self._transform(x, layout, routed=routed)

    def extend(
        self, x: jax.Array, memory: State, real: jax.Array, layout: Layout
    ) -> tuple[jax.Array, State]:
        """See `RecurrentBlock.extend`; nothing is remembered."""
        return self._transform(x, layout, routed=False)[0], memory


class AttentionLayer(Block):
    """Attention without an MLP."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.config = config
        self.attention, self.attention_norm = Attention(config, rngs=rngs), _norm(config)

    def finish(
        self, x: jax.Array, q: Queries, memory: Memory, mask: Mask, layout: Layout
    ) -> jax.Array:
        """See `Block.finish`."""
        return self._attended(x, q, memory, mask, layout)


Kind = type[Block] | type[RecurrentBlock]

_KINDS: Mapping[tuple[bool, ...], Kind] = {
    (False, True, True): Block,
    (True, False, True): RecurrentBlock,
    (False, True, False): AttentionLayer,
    (True, False, False): MixerLayer,
    (False, False, True): MLPLayer,
}
"""By whether a layer has a mixer, attention and an MLP."""


def kind(config: DecoderConfig, layer: int) -> Kind:
    """Of one layer of a decoder."""
    if config.parts:
        part = config.parts[layer]
        return _KINDS[part == "mixer", part == "attention", part in ("mlp", "experts")]
    mixes = config.recurrent and config.recurrent_layers[layer]
    return _KINDS[mixes, not mixes, True]


def kind_of(params: Mapping[str, Any]) -> Kind:
    """Of the layer that has these parameters."""
    return _KINDS[tuple(name in params for name in ("mixer", "attention", "mlp"))]


def axes(memory: State) -> State:
    """Logical axis names of what a layer remembers."""
    return delta_net.axes() if isinstance(memory, Recurrent) else gated_convolution.axes()


def empty(config: DecoderConfig, slots: int) -> State:
    """What a layer with a mixer remembers at the start of `slots` sequences."""
    return _mixer(config)[1](config, slots)
