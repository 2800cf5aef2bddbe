"""Layers whose heads differ in size between local ones and others, as in Gemma 4.

Top layers may read the keys and values of layers below in place of their own, an embedding of the
token may enter each layer, and experts may stand beside a dense MLP.

Source: Google DeepMind 2026, Gemma 4, as transformers implements it
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models import rope
from jaxrl.models.attention import Mask
from jaxrl.models.config import CYCLE, SHARING, DecoderConfig
from jaxrl.models.layers import (
    MLP,
    ExpertMLP,
    KeyValue,
    Layout,
    Norm,
    Routing,
    _activate,
    _depth,
    _matrix,
    _vector,
    rms_norm,
)
from jaxrl.models.linear import project
from jaxrl.models.mixers import pattern

Params = dict[str, Any]
Memories = tuple[KeyValue, ...]
"""The last keys and values of layers that see everything, and of local ones; empty if no layer
above reads them."""


class KindAttention(nnx.Module):
    """Attention of normalised queries, keys and values, of local layers or others."""

    def __init__(
        self, config: DecoderConfig, *, local: bool, sharing: bool, rngs: nnx.Rngs
    ) -> None:
        c, d, n, kinds = config, config.hidden_size, config.num_heads, config.kinds
        h = c.head_dim if local else kinds.global_head_dim
        heads = c.num_kv_heads if local else kinds.global_kv_heads
        q_axes, kv_axes = ("heads", "head_dim"), ("kv_heads", "head_dim")
        self.config = config
        self.q = _matrix(rngs, (d, n, h), ("embed", *q_axes))
        self.q_norm = Norm(c, (h,), ("head_dim",))
        if not sharing:
            self.k = _matrix(rngs, (d, heads, h), ("embed", *kv_axes))
            self.k_norm = Norm(c, (h,), ("head_dim",))
            if local or not kinds.keys_are_values:
                self.v = _matrix(rngs, (d, heads, h), ("embed", *kv_axes))
        self.o = _matrix(rngs, (n, h, d), (*q_axes, "embed"), inputs=2, depth=_depth(c))

    def look(self, x: jax.Array, table: jax.Array) -> tuple[jax.Array, KeyValue | None]:
        """Queries [B, T, N, H], and what is to be remembered; None where layers below do that."""
        q = rope.rotate(self.q_norm(project(x, self.q.get_value())), table)
        if not hasattr(self, "k"):
            return q, None
        k = project(x, self.k.get_value())
        v = project(x, self.v.get_value()) if hasattr(self, "v") else k
        v = rms_norm(v, jnp.ones(v.shape[-1]), self.config.norm_eps)
        return q, KeyValue(rope.rotate(self.k_norm(k), table), v)

    def read(self, q: jax.Array, memory: KeyValue, mask: Mask, layout: Layout) -> jax.Array:
        """What the tokens take from memory, [B, T, D]."""
        scale, kernel = rope.attention_scale(self.config), self.config.attention
        y = layout.attend(q, *memory, mask, scale=scale, kernel=kernel)
        return project(y, self.o.get_value(), inputs=2)


class ParallelExperts(ExpertMLP):
    """Experts beside a dense MLP (`shared`), with norms of their own on both sides."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        d, norm = config.hidden_size, functools.partial(Norm, config, (config.hidden_size,))
        self.router_scale = _vector(1.0, (d,), ("embed",))
        self.expert_scale = _vector(1.0, (config.experts.num_experts,), ("expert",))
        self.expert_norm, self.expert_post_norm = norm(("embed",)), norm(("embed",))
        self.shared_post_norm = norm(("embed",))

    def mix(self, x: jax.Array) -> tuple[jax.Array, Routing]:
        """What experts add to the residual stream x [B, T, D], and what the router did."""
        d = x.shape[-1]
        plain = rms_norm(x.astype(jnp.float32), jnp.ones(d), self.config.norm_eps)
        chosen, weights, logits = self.route(
            (plain * (self.router_scale[...] * d**-0.5)).reshape(-1, d)
        )
        weights = weights * self.expert_scale[...][chosen]
        y = self.expert_post_norm(self.spread(self.expert_norm(x), chosen, weights))
        return y, Routing(*(a.reshape(*x.shape[:2], -1) for a in (logits, chosen)))


class LayerInput(nnx.Module):
    """What the embedding of a token that enters a layer apart adds to the residual stream."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        d, p = config.hidden_size, config.kinds.input_size
        self.config = config
        self.gate = _matrix(rngs, (d, p), ("embed", "mlp"))
        self.projection = _matrix(rngs, (p, d), ("mlp", "embed"), depth=_depth(config))
        self.norm = Norm(config, (d,), ("embed",))

    def __call__(self, x: jax.Array, entry: jax.Array) -> jax.Array:
        """[B, T, D] and [B, T, P] to [B, T, D]."""
        gate = _activate(self.config, project(x, self.gate.get_value()))
        return self.norm(project(gate * entry, self.projection.get_value()))


class KindBlock(nnx.Module):
    """One layer, local or not, with keys and values of its own or not."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        routed: bool,
        local: bool,
        sharing: bool,
        rngs: nnx.Rngs,
    ) -> None:
        size = config.kinds.sharing_mlp_size if sharing else config.intermediate_size
        norm = functools.partial(Norm, config, (config.hidden_size,), ("embed",))
        self.attention = KindAttention(config, local=local, sharing=sharing, rngs=rngs)
        self.mlp: MLP | ParallelExperts = (
            ParallelExperts(config, rngs=rngs) if routed else MLP(config, size, rngs=rngs)
        )
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.attention_post_norm, self.mlp_post_norm = norm(), norm()
        if config.kinds.input_size:
            self.input = LayerInput(config, rngs=rngs)
        self.layer_scale = _vector(1.0, (1,), ("single",))

    def look(self, x: jax.Array, table: jax.Array) -> tuple[jax.Array, KeyValue | None]:
        """Queries, and what is to be remembered, of the residual stream x [B, T, D]."""
        return self.attention.look(self.attention_norm(x), table)

    def finish(
        self,
        x: jax.Array,
        q: jax.Array,
        memory: KeyValue,
        mask: Mask,
        layout: Layout,
        entry: jax.Array | None,
    ) -> tuple[jax.Array, Routing | None]:
        """The residual stream [B, T, D] after the layer, and what its router did if it has one.

        Args:
          x: [B, T, D].
          q: [B, T, N, H].
          memory: keys and values.
          mask: what each query sees of them.
          layout: how it lies on several devices.
          entry: [B, T, P], the embedding that enters this layer; None: there is none.
        """
        x = x + self.attention_post_norm(self.attention.read(q, memory, mask, layout))
        routing = None
        if isinstance(self.mlp, ParallelExperts):
            y, routing = self.mlp.routed(x, layout)
            y = y + self.mlp.shared_post_norm(self.mlp.shared(self.mlp_norm(x)))
        else:
            y = self.mlp(self.mlp_norm(x))
        x = x + self.mlp_post_norm(y)
        if entry is not None:
            x = x + self.input(x, entry)
        # a constant of the architecture in the files, and not a weight
        return x * jax.lax.stop_gradient(self.layer_scale[...]).astype(x.dtype), routing


class LayerInputs(nnx.Module):
    """The embeddings of tokens that enter the layers."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        kinds, size = config.kinds, config.num_layers * config.kinds.input_size
        value = jax.random.normal(rngs.params(), (kinds.input_vocab, size), jnp.float32)
        value = value * kinds.input_size**-0.5
        self.embed = nnx.Param(value, axes=("vocab", "embed"), inputs=0, batch=0)
        self.projection = _matrix(rngs, (config.hidden_size, size), ("embed", "mlp"))
        self.norm = Norm(config, (kinds.input_size,), ("single",))


def inputs(
    config: DecoderConfig, params: Params, tokens: jax.Array, x: jax.Array, layout: Layout
) -> jax.Array | None:
    """What enters each layer apart, [layers, B, T, P]; None: nothing does.

    Formula: `(norm(W x / sqrt(D)) + sqrt(P) E[token]) / sqrt(2)`

    Args:
      config: the decoder's shape.
      params: all of them.
      tokens: [B, T] int32.
      x: [B, T, D], their embeddings.
      layout: how it lies on several devices.
    """
    if not config.kinds.input_size:
        return None
    weights, size = params["inputs"], config.kinds.input_size
    shape = (*tokens.shape, config.num_layers, size)
    context = (project(x, weights["projection"]) * x.shape[-1] ** -0.5).reshape(shape)
    context = rms_norm(context, weights["norm"]["weight"], config.norm_eps)
    scale = jnp.asarray(size**0.5, x.dtype)
    entries = layout.look_up(weights["embed"], tokens, x.dtype).reshape(shape) * scale
    return jnp.moveaxis((context + entries) * 2**-0.5, 2, 0)


def block(config: DecoderConfig, params: Params) -> KindBlock:
    """The layer of these parameters."""
    attention = params["attention"]
    # a definition is that of all layers with parameters of the same names
    has_values = "v" in attention or not config.kinds.keys_are_values
    definition = _definition(config, "router" in params["mlp"], has_values, "k" not in attention)
    return nnx.merge(definition, nnx.State(params))


@functools.lru_cache(maxsize=16)
def _definition(
    config: DecoderConfig, routed: bool, local: bool, sharing: bool
) -> nnx.GraphDef[KindBlock]:
    make = functools.partial(KindBlock, config, routed=routed, local=local, sharing=sharing)
    return nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))[0]


def train(
    config: DecoderConfig,
    params: Params,
    x: jax.Array,
    entries: jax.Array | None,
    tables: tuple[jax.Array, jax.Array],
    mask: Mask,
    layout: Layout,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> tuple[jax.Array, Routing | None]:
    """The residual stream [B, T, D] after all layers, and the routing of all if they have experts.

    Args:
      config: the decoder's shape.
      params: as from `decoder.init`.
      x: [B, T, D].
      entries: as from `inputs`.
      tables: as from `rope.tables`.
      mask: what each query sees, without the window of local layers.
      layout: how it lies on several devices.
      wrap: of a layer's function, what the backward pass recomputes.
    """
    masks = (mask, mask.replace(window=jnp.int32(config.sliding_window or 0)))
    first = config.num_layers - config.sharing
    local = {config.place(i)[0]: config.is_local(i) for i in reversed(range(config.num_layers))}

    def layer(
        name: str, x: jax.Array, memories: Memories, weights: Params, entry: jax.Array | None
    ) -> tuple[jax.Array, Memories, Routing | None]:
        part, is_local = block(config, layout.weights(weights, name)), local[name]
        q, memory = part.look(x, tables[is_local])
        if memory is None:
            memory = memories[is_local]
        elif memories:
            memories = (memories[0], memory) if is_local else (memory, memories[1])
        x, routing = part.finish(x, q, memory, masks[is_local], layout, entry)
        return layout.activations(x), memories, routing

    bodies = {name: wrap(functools.partial(layer, name)) for name in local}
    numbers = jnp.arange(config.num_layers)

    def below(name: str, carry: tuple[jax.Array, Memories], xs: Any) -> tuple[Any, Any]:
        x, memories, routing = bodies[name](*carry, xs[0], xs[1][0])
        return (x, memories), routing

    lower = (None if entries is None else entries[:first], numbers[:first])
    memories = _empty(config, x) if config.sharing else ()
    (x, memories), routing = pattern.run(params, lower, (x, memories), below, CYCLE)
    if not config.sharing:
        return x, routing

    def above(name: str, x: jax.Array, xs: Any) -> tuple[jax.Array, Any]:
        x, _, routing = bodies[name](x, memories, xs[0], xs[1][0])
        return x, routing

    upper = (None if entries is None else entries[first:], numbers[first:])
    x, more = pattern.run(params, upper, x, above, SHARING)
    return x, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), routing, more)


def _empty(config: DecoderConfig, x: jax.Array) -> Memories:
    """Memories of no layer, for rows like x [B, T, D]."""
    kinds = config.kinds
    sizes = (
        (kinds.global_kv_heads, kinds.global_head_dim),
        (config.num_kv_heads, config.head_dim),
    )
    zeros = (jnp.zeros((*x.shape[:2], *size), x.dtype) for size in sizes)
    return tuple(KeyValue(empty, empty) for empty in zeros)
