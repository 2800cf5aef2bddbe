"""Layers of hybrids: a mixer in place of attention or beside it, and an MLP, or one part alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models.attention import Mask
from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import (
    MLP,
    Attention,
    Block,
    KeyValue,
    Layout,
    Memory,
    Norm,
    Queries,
    Routing,
    _activate,
    make_mlp,
)
from jaxrl.models.linear import project
from jaxrl.models.mixers import convolution, delta_net, mamba
from jaxrl.models.mixers.channel_delta import ChannelDeltaNet
from jaxrl.models.mixers.convolution import GatedConvolution
from jaxrl.models.mixers.delta_net import DeltaNet
from jaxrl.models.mixers.mamba import Mamba
from jaxrl.models.mixers.memory import Recurrent, State
from jaxrl.models.mixers.tree import Tree


def _norm(config: DecoderConfig) -> Norm:
    return Norm(config, (config.hidden_size,), ("embed",))


Mixer = ChannelDeltaNet | DeltaNet | GatedConvolution | Mamba


def _mixer(config: DecoderConfig) -> tuple[type[Mixer], Callable[[DecoderConfig, int], State]]:
    """The mixer of a decoder's recurrent layers, and what makes its state."""
    if config.delta:
        return ChannelDeltaNet if config.delta.by_channel else DeltaNet, delta_net.empty
    if config.mamba:
        return Mamba, mamba.empty
    return GatedConvolution, convolution.empty


def _advance(mixer: Mixer, x: jax.Array, memory: State, real: jax.Array) -> tuple[jax.Array, State]:
    """What a mixer gives for the next tokens [S, T, D], of which some are `real` [S, T]."""
    if x.shape[1] == 1:
        return mixer.extend(x, memory, real)
    order = jnp.argsort(~real, axis=1, stable=True)  # real tokens first
    back = jnp.argsort(order, axis=1)

    def take(a: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.take_along_axis(a, index[..., None], axis=1)

    y, memory = mixer.extend(take(x, order), memory, jnp.sort(~real, axis=1) == 0)
    return take(y, back), memory


class RecurrentBlock(nnx.Module):
    """One layer with a mixer in place of attention."""

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.scale = config.residual_scale
        self.mixer = _mixer(config)[0](config, rngs=rngs)
        self.mlp = make_mlp(config, routed=routed, rngs=rngs)
        self.mixer_norm, self.mlp_norm = _norm(config), _norm(config)

    def train(
        self, x: jax.Array, tree: Tree, layout: Layout, *, routed: bool
    ) -> tuple[jax.Array, Routing | None]:
        """The residual stream [B, T, D] after the layer; where `routed`, what its router did.

        Args:
          x: [B, T, D].
          tree: which tokens of the rows continue which.
          layout: how it lies on several devices.
          routed: static.
        """
        x = self._add(x, self.mixer.train(self.mixer_norm(x), tree, layout))
        return self._transform(x, layout, routed=routed)

    def extend(
        self, x: jax.Array, memory: State, real: jax.Array, layout: Layout
    ) -> tuple[jax.Array, State]:
        """As `train` for the next tokens [S, T, D], and what is then remembered.

        Tokens that are not `real` [S, T] change nothing, wherever in a row they stand.
        """
        y, memory = _advance(self.mixer, self.mixer_norm(x), memory, real)
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
        self, x: jax.Array, tree: Tree, layout: Layout, *, routed: bool
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


class ScaledMLP(MLP):
    """A gated MLP with factors on its gate and on what it adds."""

    def __call__(self, x: jax.Array, layout: Layout = Layout()) -> jax.Array:
        """[B, T, D] to the same."""
        gate, up = (project(x, p.get_value()) for p in (self.gate, self.up))
        if self.config.mlp_bias:
            gate = gate + self.gate_bias[...].astype(x.dtype)
            up = up + self.up_bias[...].astype(x.dtype)
        factors = self.config.beside
        y = project(_activate(self.config, gate * factors.gate) * up, self.down.get_value())
        y = y + self.down_bias[...].astype(x.dtype) if self.config.mlp_bias else y
        return y * factors.down


class ParallelBlock(Block):
    """One layer with attention and a mixer side by side, and an MLP.

    The mixer reads what attention reads: `mix` or `advance` before `finish`, which adds the rest.

    Source: TII 2025, "Falcon-H1: A Family of Hybrid-Head Language Models"
    """

    def __init__(self, config: DecoderConfig, *, routed: bool, rngs: nnx.Rngs) -> None:
        self.config = config
        self.attention = Attention(config, rngs=rngs)
        self.mixer = _mixer(config)[0](config, rngs=rngs)
        self.mlp = ScaledMLP(config, config.intermediate_size, rngs=rngs)
        self.attention_norm, self.mlp_norm = _norm(config), _norm(config)

    def look(
        self, x: jax.Array, table: jax.Array, scale: jax.Array | None = None
    ) -> tuple[Queries, KeyValue]:
        """See `Block.look`."""
        factors = self.config.beside
        x = self.attention_norm(x) * factors.attention_in
        q, (k, v) = self.attention.look(x, table, scale)
        return q, KeyValue(k * factors.keys, v)

    def mix(self, x: jax.Array, tree: Tree, layout: Layout) -> jax.Array:
        """What the mixer adds to the residual stream x [B, T, D] of trees."""
        factors = self.config.beside
        y = self.mixer.train(self.attention_norm(x) * factors.mixer_in, tree, layout)
        return y * factors.mixer_out

    def advance(self, x: jax.Array, memory: State, real: jax.Array) -> tuple[jax.Array, State]:
        """As `mix` for the next tokens [S, T, D], and what is then remembered of them.

        Tokens that are not `real` [S, T] change nothing.
        """
        factors = self.config.beside
        x = self.attention_norm(x) * factors.mixer_in
        y, memory = _advance(self.mixer, x, memory, real)
        return y * factors.mixer_out, memory

    def _attended(
        self, x: jax.Array, q: Queries, memory: Memory, mask: Mask, layout: Layout
    ) -> jax.Array:
        return x + self.attention.read(q, memory, mask, layout) * self.config.beside.attention_out


Kind = type[Block] | type[RecurrentBlock]

_KINDS: Mapping[tuple[bool, ...], Kind] = {
    (False, True, True): Block,
    (True, True, True): ParallelBlock,
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
    return _KINDS[mixes, not mixes or config.beside is not None, True]


def kind_of(params: Mapping[str, Any]) -> Kind:
    """Of the layer that has these parameters."""
    return _KINDS[tuple(name in params for name in ("mixer", "attention", "mlp"))]


def axes(memory: State) -> State:
    """Logical axis names of what a layer remembers."""
    return delta_net.axes() if isinstance(memory, Recurrent) else convolution.axes()


def empty(config: DecoderConfig, slots: int) -> State:
    """What a layer with a mixer remembers at the start of `slots` sequences."""
    return _mixer(config)[1](config, slots)
