"""Layers that attend within chunks among ones that see everything without positions, as in Llama 4.

Layers may have experts or a dense MLP in any order. An expert is given its token times the weight
that the router gives it, where elsewhere the weight is a factor on what the expert adds.

Source: Meta 2025, Llama 4, as transformers implements it
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
from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import (
    MLP,
    Attention,
    Block,
    ExpertMLP,
    KeyValue,
    Layout,
    Norm,
    Routing,
    rms_norm,
)
from jaxrl.models.linear import project, project_ragged
from jaxrl.models.mixers import pattern

Params = dict[str, Any]


class WeightedInputs(ExpertMLP):
    """Experts that are given their tokens times the sigmoid of the router's logit."""

    def route(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """See `ExpertMLP.route`. Logits decide, since equal sigmoids may be of unequal logits."""
        logits = project(x.astype(jnp.float32), self.router.get_value())
        best, chosen = jax.lax.top_k(logits, self.config.experts.per_token)
        return chosen, jax.nn.sigmoid(best), logits

    def spread(self, x: jax.Array, chosen: jax.Array, weights: jax.Array) -> jax.Array:
        """See `ExpertMLP.spread`."""
        e, tokens = self.config.experts, x.reshape(-1, x.shape[-1])
        order = jnp.argsort(chosen.reshape(-1))  # tokens of one expert become one run of rows
        source = order // e.per_token
        sizes = jnp.bincount(chosen.reshape(-1), length=e.num_experts)
        rows = tokens[source] * weights.reshape(-1)[order, None].astype(x.dtype)
        gate, up = (project_ragged(rows, p.get_value(), sizes) for p in (self.gate, self.up))
        rows = project_ragged(self._gate(gate, up), self.down.get_value(), sizes)
        return jnp.zeros_like(tokens).at[source].add(rows).reshape(x.shape)


class ChunkBlock(Block):
    """One layer, `local` if it knows positions and attends within chunks."""

    def __init__(self, config: DecoderConfig, *, routed: bool, local: bool, rngs: nnx.Rngs) -> None:
        norm = functools.partial(Norm, config, (config.hidden_size,), ("embed",))
        self.config, self.local = config, local
        self.attention = Attention(config, rngs=rngs)
        self.mlp = (
            WeightedInputs(config, rngs=rngs)
            if routed
            else MLP(config, config.intermediate_size, rngs=rngs)
        )
        self.attention_norm, self.mlp_norm = norm(), norm()

    def look(
        self, x: jax.Array, table: jax.Array, scale: jax.Array | None = None
    ) -> tuple[jax.Array, KeyValue]:
        """See `Block.look`; `scale` is for layers that are not local."""
        scale = None if self.local else scale
        q, (k, v) = self.attention.look(self.attention_norm(x), table, scale)
        if self.local and self.config.chunks.normalize:
            ones, eps = jnp.ones(q.shape[-1]), self.config.norm_eps
            q, k = rms_norm(q, ones, eps), rms_norm(k, ones, eps)
        return q, KeyValue(k, v)


def block(config: DecoderConfig, params: Params, *, local: bool) -> ChunkBlock:
    """The layer of these parameters, `local` or not."""
    return nnx.merge(_definition(config, "router" in params["mlp"], local), nnx.State(params))


@functools.lru_cache(maxsize=16)
def _definition(config: DecoderConfig, routed: bool, local: bool) -> nnx.GraphDef[ChunkBlock]:
    make = functools.partial(ChunkBlock, config, routed=routed, local=local)
    return nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))[0]


def local_mask(config: DecoderConfig, mask: Mask) -> Mask:
    """What queries of local layers see of what `mask` lets others see."""
    size = config.chunks.size
    return mask if size is None else mask.replace(chunk=jnp.int32(size))


def train(
    config: DecoderConfig,
    params: Params,
    x: jax.Array,
    tables: jax.Array,
    scale: jax.Array,
    mask: Mask,
    layout: Layout,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> tuple[jax.Array, Routing | None]:
    """The residual stream [B, T, D] after all layers, and the routing of those with experts.

    Args:
      config: the decoder's shape.
      params: as from `decoder.init`.
      x: [B, T, D].
      tables: as from `rope.tables`.
      scale: as from `rope.query_scale`.
      mask: what queries of layers that see everything see.
      layout: how it lies on several devices.
      wrap: of a layer's function, what the backward pass recomputes.
    """
    masks = mask, local_mask(config, mask)
    local = {config.place(i)[0]: config.is_local(i) for i in range(config.num_layers)}
    kinds = rope.kinds(config)
    rotations = {config.place(i)[0]: kinds[i] for i in range(config.num_layers)}

    def layer(name: str, x: jax.Array, weights: Params) -> tuple[jax.Array, Routing | None]:
        part = block(config, layout.weights(weights, name), local=local[name])
        q, memory = part.look(x, tables[rotations[name]], scale)
        rest = (x, q, memory, masks[local[name]], layout)
        if "router" not in weights["mlp"]:
            return layout.activations(part.finish(*rest)), None
        x, routing = part.finish_routed(*rest)
        return layout.activations(x), routing

    bodies = {name: wrap(functools.partial(layer, name)) for name in local}
    numbers = jnp.arange(config.num_layers)
    return pattern.run(params, numbers, x, lambda name, x, xs: bodies[name](x, xs[0]))
