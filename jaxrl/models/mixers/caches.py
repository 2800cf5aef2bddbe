"""What the layers of a decoder remember of past tokens: its arrays, empty, and their axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.models.config import DecoderConfig
from jaxrl.models.layers import KeyValue, LatentKeyValue, Memory
from jaxrl.models.mixers import block as recurrent
from jaxrl.models.mixers.memory import Beside, State

LayerCache = Memory | State | Beside | None
"""What one layer remembers: leaves [S, K, M, ...] for S slots, K heads, M positions; of a recurrent
layer, a state of each slot, and both where they stand side by side; None where it reads what
another layer remembers, or is an MLP."""


def cache_axes(layer: LayerCache) -> LayerCache:
    """Logical axis names of the leaves of one layer's cache."""
    if layer is None:
        return None
    if isinstance(layer, State):
        return recurrent.axes(layer)
    if isinstance(layer, Beside):
        return Beside(cache_axes(layer.attention), cache_axes(layer.mixer))
    if isinstance(layer, LatentKeyValue):
        return LatentKeyValue(("batch", None, None, "latent"), ("batch", None, None, "head_dim"))
    return KeyValue(*[("batch", "kv_heads", None, "head_dim")] * 2)


def empty_cache(config: DecoderConfig, slots: int, length: int) -> tuple[LayerCache, ...]:
    """Zeroed caches of all layers for `slots` sequences of up to `length` tokens.

    An opaque pytree, but that every leaf is [slots, heads, length, features]: a head's positions
    lie together, as attention reads them. A recurrent layer's has no length; see
    `mixers.memory.by_kind`.
    """

    def zeros(heads: int, features: int) -> jax.Array:
        return jnp.zeros((slots, heads, length, features), config.dtype)

    def layer(number: int) -> LayerCache:
        if config.beside:
            shape = (config.num_kv_heads, config.head_dim)
            return Beside(KeyValue(zeros(*shape), zeros(*shape)), recurrent.empty(config, slots))
        if config.recurrent and config.recurrent_layers[number]:
            return recurrent.empty(config, slots)
        if config.parts and config.parts[number] != "attention":
            return None
        if config.latent:
            return LatentKeyValue(zeros(1, config.latent.kv_rank), zeros(1, config.latent.rope_dim))
        if config.source(number) != number:
            return None
        shape = (config.num_kv_heads, config.head_dim)
        if config.kinds and not config.is_local(number):
            shape = (config.kinds.global_kv_heads, config.kinds.global_head_dim)
        return KeyValue(zeros(*shape), zeros(*shape))

    return tuple(map(layer, range(config.num_layers)))
