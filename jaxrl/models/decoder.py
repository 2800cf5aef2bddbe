"""The decoder: one Flax NNX module, and the pure functions that the rest of jaxrl calls.

Parameters cross the boundary as a plain nested dict of arrays. Layers are stacked on a leading axis
and scanned for training; the sampler unrolls them over per-layer caches (`unstack`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl.models import gates, rope
from jaxrl.models.attention import Mask, tree_mask
from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import Block, Layout, Norm, Routing, rms_norm
from jaxrl.models.mixers import block as hybrid
from jaxrl.models.mixers import chunk_block, kind_block, pattern
from jaxrl.models.mixers import memory as memories
from jaxrl.models.mixers import tree as trees
from jaxrl.models.mixers.block import ParallelBlock, RecurrentBlock
from jaxrl.models.mixers.caches import LayerCache
from jaxrl.models.mixers.caches import cache_axes as cache_axes
from jaxrl.models.mixers.caches import empty_cache as empty_cache
from jaxrl.models.mixers.chunk_block import ChunkBlock
from jaxrl.models.mixers.kind_block import KindBlock, LayerInputs
from jaxrl.models.mixers.memory import Beside
from jaxrl.models.mixers.pattern import STACKS, is_stack
from jaxrl.models.remat import Remat, wrap

Params = dict[str, Any]
_EVERYTHING = 2**30
"""The window of a layer that has none: more than any position."""

_SCORE_DEVIATION = 0.02
"""Of the first weights of a score, as transformers draws them."""

AnyBlock = Block | RecurrentBlock | KindBlock
Maker = Callable[..., AnyBlock]


class Leaf(NamedTuple):
    """One parameter, as the decoder declares it."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """Logical name of each axis."""
    batch: int
    """Leading axes that enumerate layers and experts."""
    inputs: int
    """Axes after those that a projection contracts; 0 for vectors and the embedding."""


class Decoder(nnx.Module):
    """Embedding, stacked blocks, final norm, and an output head tied to the embedding or not.

    A reward model has a `score` in place of the output head.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        def stack(depth: int, *, routed: bool, kind: Maker) -> AnyBlock:
            @nnx.split_rngs(splits=depth)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def make(rngs: nnx.Rngs) -> AnyBlock:
                return kind(config, routed=routed, rngs=rngs)

            return make(rngs)

        def table() -> nnx.Param:
            shape = (config.vocab_size, config.hidden_size)
            value = jax.random.normal(rngs.params(), shape, jnp.float32) * shape[1] ** -0.5
            return nnx.Param(value, axes=("vocab", "embed"), inputs=0, batch=0)

        self.embed = table()
        stacks: dict[str, list[int]] = {}
        for i in range(config.num_layers):
            stacks.setdefault(config.place(i)[0], []).append(i)
        for name, (first, *rest) in stacks.items():
            routed, kind = config.routes(first), _kind(config, first)
            setattr(self, name, stack(1 + len(rest), routed=routed, kind=kind))
        if config.kinds and config.kinds.input_size:
            self.inputs = LayerInputs(config, rngs=rngs)
        self.norm = Norm(config, (config.hidden_size,), ("embed",))
        if config.labels:
            value = fresh_score(config, rngs.params())
            self.score = nnx.Param(value, axes=("embed", "labels"), inputs=1, batch=0)
        elif not config.tie_embeddings:
            self.head = table()


def fresh_score(config: DecoderConfig, key: jax.Array) -> jax.Array:
    """The first weights of a reward model's score, [D, labels] fp32."""
    shape = (config.hidden_size, config.labels)
    return jax.random.normal(key, shape, jnp.float32) * _SCORE_DEVIATION


def init(config: DecoderConfig, key: jax.Array) -> Params:
    """Fresh fp32 parameters: a nested dict whose `layers` leaves lead with [num_layers]."""
    return nnx.to_pure_dict(nnx.state(Decoder(config, rngs=nnx.Rngs(params=key))))


def _declared(config: DecoderConfig) -> nnx.State:
    return nnx.state(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))


def layout(config: DecoderConfig) -> dict[tuple[str, ...], Leaf]:
    """Every parameter by its path."""
    leaves = {}
    for path, p in nnx.to_flat_state(_declared(config)):
        stacked = is_stack(path[0])
        axes = ("layers", *p.axes) if stacked else p.axes
        leaves[path] = Leaf(p.shape, axes, p.batch + stacked, p.inputs)
    return leaves


def abstract(config: DecoderConfig) -> tuple[Params, Params]:
    """Shapes of the parameters and, leaf by leaf, their logical axis names."""
    axes = {path: leaf.axes for path, leaf in layout(config).items()}
    return nnx.to_pure_dict(_declared(config)), nnx.traversals.unflatten_mapping(axes)


@functools.lru_cache(maxsize=16)
def _block_def(config: DecoderConfig, routed: bool, kind: type[AnyBlock]) -> nnx.GraphDef[AnyBlock]:
    make = functools.partial(kind, config, routed=routed)
    return nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))[0]


def _kind(config: DecoderConfig, layer: int) -> Maker:
    """What makes the block of a layer."""
    if config.chunks:
        return functools.partial(ChunkBlock, local=config.is_local(layer))
    if config.kinds:
        sharing = layer >= config.num_layers - config.sharing
        return functools.partial(KindBlock, local=config.is_local(layer), sharing=sharing)
    return hybrid.kind(config, layer)


def _block(config: DecoderConfig, params: Params, local: bool = False) -> AnyBlock:
    if config.chunks:
        return chunk_block.block(config, params, local=local)
    if config.kinds:
        return kind_block.block(config, params)
    routed, kind = "router" in params.get("mlp", ()), hybrid.kind_of(params)
    return nnx.merge(_block_def(config, routed, kind), nnx.State(params))


def _embed(config: DecoderConfig, params: Params, tokens: jax.Array) -> jax.Array:
    x = params["embed"][tokens].astype(config.dtype)
    return x * jnp.asarray(config.embed_scale, config.dtype) if config.embed_scale != 1 else x


def _final_norm(config: DecoderConfig, params: Params, x: jax.Array) -> jax.Array:
    weight, offset = params["norm"]["weight"], config.norm_offset
    if config.logit_divisor != 1 and not config.labels:
        weight, offset = weight / config.logit_divisor, offset / config.logit_divisor
    return rms_norm(x, weight, config.norm_eps, offset)


def hidden(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    visible_until: jax.Array,
    *,
    levels: int = 1,
    remat: Remat = "none",
    layout: Layout = Layout(),
    noise: jax.Array | None = None,
) -> jax.Array:
    """Final hidden states of packed rows, the training forward pass.

    Args:
      config: the decoder's shape.
      params: as from `init`.
      tokens: [B, T] int32.
      positions: [B, T] int32, position of each token in its own sequence.
      visible_until: [B, T] int32, see `attention.tree_mask`.
      levels: static; at least those of the deepest tree, see `Packed.levels`. Recurrent layers
        alone need it.
      remat: what the backward pass recomputes, see `remat.wrap`.
      layout: how it lies on several devices.
      noise: [B, T, D] added to the embeddings; None: none.

    Returns:
      [B, T, D] in the compute dtype.
    """
    options = (levels, remat, layout, noise)
    return _forward(config, params, tokens, positions, visible_until, *options, routed=False)[0]


def routed(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    visible_until: jax.Array,
    *,
    levels: int = 1,
    remat: Remat = "none",
    layout: Layout = Layout(),
    noise: jax.Array | None = None,
) -> tuple[jax.Array, Routing]:
    """As `hidden`, of a decoder with experts, with what its routers did.

    Args:
      config, params, tokens, positions, visible_until, levels, remat, layout, noise: see
        `hidden`.

    Returns:
      States [B, T, D], and the routing of all layers that have experts: its leaves lead with them.
    """
    options = (levels, remat, layout, noise)
    return _forward(config, params, tokens, positions, visible_until, *options, routed=True)


def _forward(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    visible_until: jax.Array,
    levels: int,
    remat: Remat,
    layout: Layout,
    noise: jax.Array | None,
    *,
    routed: bool,
) -> tuple[jax.Array, Any]:
    """Final states, and the routing of the upper stack where `routed`; see `hidden`."""
    table, mask = rope.tables(config, positions), tree_mask(visible_until, positions)
    scale = rope.query_scale(config, positions)
    kind = jnp.asarray(rope.kinds(config))
    local = jnp.asarray(config.local_layers or (False,) * config.num_layers)
    tree = trees.of_rows(visible_until, levels) if config.recurrent else None

    def layer(
        stack: str, x: jax.Array, xs: tuple[Params, jax.Array, jax.Array]
    ) -> tuple[jax.Array, Routing | None]:
        layer_params, kind, local = xs
        layer_params, gated = gates.take(layer_params, layout)
        block = _block(config, layout.weights(layer_params, stack))
        has_routing = routed and "router" in layer_params.get("mlp", ())
        if isinstance(block, RecurrentBlock):
            x, routing = block.train(x, tree, gated, routed=has_routing)
            return layout.activations(x), routing
        q, memory = block.look(x, table[kind], scale)
        if isinstance(block, ParallelBlock):
            x = x + block.mix(x, tree, gated)
        layer_mask = mask
        if any(config.local_layers):
            layer_mask = mask.replace(window=jnp.where(local, config.sliding_window, _EVERYTHING))
        if has_routing:
            x, routing = block.finish_routed(x, q, memory, layer_mask, gated)
            return layout.activations(x), routing
        return layout.activations(block.finish(x, q, memory, layer_mask, gated)), None

    rest = layout.weights({k: v for k, v in params.items() if not is_stack(k)}, "")
    x = layout.activations(_embed(config, rest, tokens))
    x = x if noise is None else x + noise.astype(x.dtype)
    if tree is not None:  # too few levels give no number, rather than a wrong one
        x = jnp.where(jnp.any(tree.level, axis=-1, keepdims=True), x, jnp.nan)
    again = functools.partial(wrap, policy=remat)
    if config.chunks:
        x, routing = chunk_block.train(config, params, x, table, scale, mask, layout, again)
        return _final_norm(config, rest, x), routing
    if config.kinds:
        entries = kind_block.inputs(config, rest, tokens, x, layout)
        x, routing = kind_block.train(config, params, x, entries, table, mask, layout, again)
        return _final_norm(config, rest, x), routing
    if config.recurrent:
        stacks = {name: part for name, part in params.items() if is_stack(name)}
        bodies = {name: wrap(functools.partial(layer, name), remat) for name in stacks}
        x, routing = pattern.run(
            stacks,
            (kind, local),
            x,
            lambda name, x, xs: bodies[name](x, (xs[0], *xs[1])),
        )
        return _final_norm(config, rest, x), routing
    dense, routing = config.dense_layers, None
    for name, part in zip(STACKS, (slice(0, dense), slice(dense, None)), strict=True):
        if name in params:
            body = wrap(functools.partial(layer, name), remat)
            x, routing = jax.lax.scan(body, x, (params[name], kind[part], local[part]))
    return _final_norm(config, rest, x), routing


def unembedding(params: Params) -> jax.Array:
    """The output head, [V, D]: the embedding itself when tied."""
    return params.get("head", params["embed"])


def unstack(params: Params) -> Params:
    """The same parameters with `layers` as a tuple of per-layer dicts, the form `extend` takes.

    Decoding reads every weight once a token; a scan would copy each layer's slice first.
    """
    stacks: dict[str, list[Params]] = {}
    for name in filter(is_stack, params):
        leaves, structure = jax.tree.flatten(params[name])
        stacks[name] = [
            jax.tree.unflatten(structure, layer_leaves)
            for layer_leaves in zip(*leaves, strict=True)
        ]
    rest = {name: value for name, value in params.items() if not is_stack(name)}
    return {**rest, "layers": tuple(pattern.in_order(stacks))}


def cast(params: Params, dtype: str) -> Params:
    """Parameters as decoding reads them: in `dtype` where the forward pass would cast them to it.

    Norms, decays, convolutions, routers and attention sinks compute in fp32 and keep their dtype,
    lest the sampler choose other experts than the trainer; so do the codes and scales of quantised
    weights.
    """
    exempt_names = {
        "weight", "router", "router_bias", "correction", "sinks", "scales", "a_log", "dt_bias",
        "conv", "conv_bias", "q_conv", "k_conv", "v_conv", "skip", "router_scale", "expert_scale",
    }  # fmt: skip

    def leaf(path: tuple[Any, ...], a: jax.Array) -> jax.Array:
        names = {getattr(step, "key", getattr(step, "name", None)) for step in path}
        return (
            a.astype(dtype)
            if jnp.issubdtype(a.dtype, jnp.floating) and not names & exempt_names
            else a
        )

    return jax.tree_util.tree_map_with_path(leaf, params)


def extend(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    cache: tuple[LayerCache, ...],
    *,
    window: int | None = None,
    from_start: bool = False,
    layout: Layout = Layout(),
) -> tuple[jax.Array, tuple[LayerCache, ...]]:
    """Run new tokens over a cache and write what is to be remembered of them into it.

    Args:
      config: the decoder's shape.
      params: as from `unstack`; with the first layers alone, those are run.
      tokens: [S, T] int32.
      positions: [S, T] int32, where each token is written; a position beyond the cache is dropped,
        which is how padding is passed.
      cache: per layer, as from `empty_cache`; that of a layer which is not run stays as it is.
      window: static; how much of the cache attention reads, by default all. Every real position
        must be below it. Less than all is copied first, which pays for many tokens, not for one.
      from_start: static; token i of every row is at position i or is padding, so attention need not
        read what lies behind it.
      layout: how it lies on several devices.

    Returns:
      hidden [S, T, D], and the cache.
    """
    mask = local_mask = Mask(positions, ordered=from_start)
    if any(config.local_layers):
        local_mask = mask.replace(window=jnp.int32(config.sliding_window))
    if config.chunks:
        local_mask = chunk_block.local_mask(config, mask)
    table, kinds = rope.tables(config, positions), rope.kinds(config)
    scale = rope.query_scale(config, positions)
    real = positions < memories.length(cache) if config.recurrent else None

    @jax.vmap  # as a batch, for then devices that share out the slots exchange nothing
    def put(old: jax.Array, new: jax.Array, at: jax.Array) -> jax.Array:
        return old.at[:, at].set(jnp.swapaxes(new, 0, 1), mode="drop")

    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        return put(old, new, positions)

    def read(layer: jax.Array) -> jax.Array:
        return jnp.swapaxes(layer[:, :, :window], 1, 2)

    @functools.partial(jax.jit, static_argnums=4)  # traced once for all layers that are alike
    def one(
        x: jax.Array, layer_params: Params, layer: LayerCache, rotation: Any, local: bool,
        entry: jax.Array | None, source: LayerCache,
    ) -> tuple[jax.Array, LayerCache]:  # fmt: skip
        layer_params, gated = gates.take(layer_params, layout)
        block = _block(config, layer_params, local)
        if isinstance(block, RecurrentBlock):
            x, remembered = block.extend(x, layer, real, layout)
            return x, layout.cache(remembered)
        layer_mask = local_mask if local else mask
        if isinstance(block, KindBlock):
            q, new = block.look(x, rotation)
            remembered = layout.cache(jax.tree.map(write, layer, new))
            memory = jax.tree.map(read, source if new is None else remembered)
            return block.finish(x, q, memory, layer_mask, gated, entry)[0], remembered
        q, new = block.look(x, rotation, scale)
        if isinstance(block, ParallelBlock):
            y, state = block.advance(x, layer.mixer, real)
            remembered = layout.cache(Beside(jax.tree.map(write, layer.attention, new), state))
            x, memory = x + y, jax.tree.map(read, remembered.attention)
        else:
            remembered = layout.cache(jax.tree.map(write, layer, new))
            memory = jax.tree.map(read, remembered)
        return block.finish(x, q, memory, layer_mask, gated), remembered

    x = _embed(config, params, tokens)
    entries = kind_block.inputs(config, params, tokens, x, layout) if config.kinds else None
    layer_caches: list[LayerCache] = []
    for i, (layer_params, layer) in enumerate(zip(params["layers"], cache, strict=False)):
        source = layer_caches[config.source(i)] if config.source(i) < i else None
        entry = None if entries is None else entries[i]
        rotation, local = table[kinds[i]], config.is_local(i)
        x, remembered = one(x, layer_params, layer, rotation, local, entry, source)
        layer_caches.append(remembered)
    return _final_norm(config, params, x), (*layer_caches, *cache[len(layer_caches) :])
