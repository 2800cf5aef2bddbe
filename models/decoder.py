"""The decoder: one Flax NNX module, and the pure functions that the rest of jaxrl calls.

Parameters cross the boundary as a plain nested dict of arrays. Layers are stacked on a leading axis
and scanned for training; the sampler unrolls them over per-layer caches (`unstack`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.attention import attend, rotate, tree_mask
from models.config import DecoderConfig

Params = dict[str, Any]


class LayerCache(NamedTuple):
    """Keys and values of one layer: k, v [S, M, K, H] for S slots of M positions."""

    k: jax.Array
    v: jax.Array


def _normal(key: jax.Array, shape: Sequence[int], fan_in: int) -> jax.Array:
    return jax.random.normal(key, shape, jnp.float32) * fan_in**-0.5


class Block(nnx.Module):
    """Pre-norm attention and gated MLP (Llama, Touvron et al. 2023)."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        c, d = config, config.hidden_size
        param = nnx.Param
        self.config = config
        self.attention_norm = param(jnp.ones(d), axes=("embed",))
        self.q = param(
            _normal(rngs.params(), (d, c.num_heads, c.head_dim), d),
            axes=("embed", "heads", "head_dim"),
        )
        self.k = param(
            _normal(rngs.params(), (d, c.num_kv_heads, c.head_dim), d),
            axes=("embed", "kv_heads", "head_dim"),
        )
        self.v = param(
            _normal(rngs.params(), (d, c.num_kv_heads, c.head_dim), d),
            axes=("embed", "kv_heads", "head_dim"),
        )
        residual = 2 * c.num_layers  # keeps the residual stream's variance flat in depth
        self.o = param(
            _normal(
                rngs.params(),
                (c.num_heads, c.head_dim, d),
                c.num_heads * c.head_dim * residual,
            ),
            axes=("heads", "head_dim", "embed"),
        )
        self.mlp_norm = param(jnp.ones(d), axes=("embed",))
        self.gate = param(
            _normal(rngs.params(), (d, c.intermediate_size), d), axes=("embed", "mlp")
        )
        self.up = param(_normal(rngs.params(), (d, c.intermediate_size), d), axes=("embed", "mlp"))
        self.down = param(
            _normal(rngs.params(), (c.intermediate_size, d), c.intermediate_size * residual),
            axes=("mlp", "embed"),
        )

    def qkv(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Normalised, projected and rotated: q [B, T, N, H], k and v [B, T, K, H]."""
        theta = self.config.rope_theta
        x = rms_norm(x, self.attention_norm[...], self.config.norm_eps)
        q = jnp.einsum("btd,dnh->btnh", x, self.q[...].astype(x.dtype))
        k = jnp.einsum("btd,dkh->btkh", x, self.k[...].astype(x.dtype))
        v = jnp.einsum("btd,dkh->btkh", x, self.v[...].astype(x.dtype))
        return rotate(q, positions, theta), rotate(k, positions, theta), v

    def finish(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """Residual additions of the attention output [B, T, N, H] and of the MLP."""
        x = x + jnp.einsum("btnh,nhd->btd", attended, self.o[...].astype(x.dtype))
        y = rms_norm(x, self.mlp_norm[...], self.config.norm_eps)
        gate, up, down = (p[...].astype(x.dtype) for p in (self.gate, self.up, self.down))
        return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down


class Decoder(nnx.Module):
    """Embedding, stacked blocks, final norm, and an output head tied to the embedding or not."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(config, rngs=rngs)

        v, d = config.vocab_size, config.hidden_size
        self.embed = nnx.Param(_normal(rngs.params(), (v, d), d), axes=("vocab", "embed"))
        self.layers = stack(rngs)
        self.norm = nnx.Param(jnp.ones(d), axes=("embed",))
        if not config.tie_embeddings:
            self.head = nnx.Param(_normal(rngs.params(), (v, d), d), axes=("vocab", "embed"))


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm (Zhang and Sennrich 2019) over the last axis, computed in fp32."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * weight).astype(x.dtype)


def init(config: DecoderConfig, key: jax.Array) -> Params:
    """Fresh fp32 parameters: a nested dict whose `layers` leaves lead with [num_layers]."""
    return nnx.to_pure_dict(nnx.state(Decoder(config, rngs=nnx.Rngs(params=key))))


def abstract(config: DecoderConfig) -> tuple[Params, Params]:
    """Shapes of the parameters and, leaf by leaf, their logical axis names."""
    state = nnx.state(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))

    def axes(path: tuple[Any, ...], p: nnx.Param) -> tuple[str, ...]:
        return ("layers", *p.axes) if path[0].key == "layers" else p.axes

    named = jax.tree_util.tree_map_with_path(
        axes, state, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )
    return nnx.to_pure_dict(state), nnx.to_pure_dict(named)


@functools.lru_cache(maxsize=16)
def _block_def(config: DecoderConfig) -> nnx.GraphDef[Block]:
    return nnx.split(nnx.eval_shape(lambda: Block(config, rngs=nnx.Rngs(0))))[0]


def _block(config: DecoderConfig, params: Params) -> Block:
    return nnx.merge(_block_def(config), nnx.State(params))


def hidden(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    visible_until: jax.Array,
    *,
    remat: bool = False,
) -> jax.Array:
    """Final hidden states of packed rows, the training forward pass.

    Args:
      config: the decoder's shape.
      params: as from `init`.
      tokens: [B, T] int32.
      positions: [B, T] int32, position of each token in its own sequence.
      visible_until: [B, T] int32, see `attention.tree_mask`.
      remat: recompute each layer in the backward pass instead of keeping its activations.

    Returns:
      [B, T, D] in the compute dtype.
    """
    mask = tree_mask(visible_until)

    def layer(x: jax.Array, layer_params: Params) -> tuple[jax.Array, None]:
        block = _block(config, layer_params)
        q, k, v = block.qkv(x, positions)
        return block.finish(x, attend(q, k, v, mask)), None

    x = params["embed"][tokens].astype(config.dtype)
    x, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, params["layers"])
    return rms_norm(x, params["norm"], config.norm_eps)


def unembedding(params: Params) -> jax.Array:
    """The output head, [V, D]: the embedding itself when tied."""
    return params.get("head", params["embed"])


def unstack(params: Params) -> Params:
    """The same parameters with `layers` as a tuple of per-layer dicts, the form `extend` takes.

    Decoding reads every weight once a token; a scan would copy each layer's slice first.
    """
    leaves, structure = jax.tree.flatten(params["layers"])
    per_layer = zip(*leaves, strict=True)
    return {**params, "layers": tuple(jax.tree.unflatten(structure, one) for one in per_layer)}


def empty_cache(config: DecoderConfig, slots: int, length: int) -> tuple[LayerCache, ...]:
    """Zeroed key-value caches of all layers for `slots` sequences of up to `length` tokens."""
    shape = (slots, length, config.num_kv_heads, config.head_dim)
    return tuple(
        LayerCache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))
        for _ in range(config.num_layers)
    )


def extend(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    cache: tuple[LayerCache, ...],
    *,
    window: int,
) -> tuple[jax.Array, tuple[LayerCache, ...]]:
    """Run new tokens over a cache and write their keys and values into it.

    Args:
      config: the decoder's shape.
      params: as from `unstack`.
      tokens: [S, T] int32.
      positions: [S, T] int32, where each token is written; a position beyond the cache is dropped,
        which is how padding is passed.
      cache: per layer, as from `empty_cache`.
      window: static; how much of the cache attention reads. Every real position must be below it.

    Returns:
      hidden [S, T, D], and the cache.
    """
    slot = jnp.arange(tokens.shape[0])[:, None]
    mask = jnp.arange(window)[None, None, :] <= positions[:, :, None]
    x = params["embed"][tokens].astype(config.dtype)
    written = []
    for layer_params, layer in zip(params["layers"], cache, strict=True):
        block = _block(config, layer_params)
        q, k, v = block.qkv(x, positions)
        layer = LayerCache(
            layer.k.at[slot, positions].set(k, mode="drop"),
            layer.v.at[slot, positions].set(v, mode="drop"),
        )
        x = block.finish(x, attend(q, layer.k[:, :window], layer.v[:, :window], mask))
        written.append(layer)
    return rms_norm(x, params["norm"], config.norm_eps), tuple(written)
