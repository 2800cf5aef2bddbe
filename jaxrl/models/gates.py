"""Gates between full and local attention, one for each key-value head.

A gate of 1 leaves a head as it is. At 0 the head sees the first tokens of its sequence and the last
ones alone, so that its cache need hold no others. Gates are an entry `gates` of a stack of layers;
a decoder without them computes what it would without this module.

Paper: Du et al. 2025, "Which Heads Matter for Reasoning? RL-Guided KV Cache Compression" (RLKV)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.models.attention import Mask
from jaxrl.models.layers import Layout

Params = dict[str, Any]
_NAME = "gates"


@struct.dataclass
class Gates:
    """Of the heads of all layers of a stack, or of one of them."""

    alpha: jax.Array
    """[layers, K] in [0, 1], and [K] of a layer."""
    sink: int = struct.field(pytree_node=False)
    """First positions that a local head sees,"""
    recent: int = struct.field(pytree_node=False)
    """and last ones, the query's own included."""


def gated(params: Params, gates: Gates) -> Params:
    """Parameters whose `layers` have gates, as from `decoder.init`; weights are shared, not copied.

    Raises:
      ValueError: the layers are not alike, so that heads have no number in all of them.

    Formula: `alpha attend(q, k, v) + (1 - alpha) attend_local(q, k, v)` in every head
    """
    if "layers" not in params:
        raise ValueError(
            "gates stand between full and local attention, and layers of this model are of several "
            "kinds; name a model whose layers all have attention with heads of one size"
        )
    return {**params, "layers": {**params["layers"], _NAME: gates}}


def take(params: Params, layout: Layout) -> tuple[Params, Layout]:
    """A layer's parameters without its gates, and the layout whose attention obeys them."""
    if _NAME not in params:
        return params, layout
    gates: Gates = params[_NAME]

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, **settings: Any) -> jax.Array:
        near = mask.replace(window=jnp.int32(gates.recent), sink=jnp.int32(gates.sink))
        full_output, local_output = (
            layout.attend(q, k, v, attention_mask, **settings) for attention_mask in (mask, near)
        )
        share = jnp.repeat(gates.alpha, q.shape[2] // gates.alpha.shape[0])[:, None]
        return (share * full_output + (1 - share) * local_output).astype(full_output.dtype)

    rest = {name: value for name, value in params.items() if name != _NAME}
    return rest, layout._replace(attend=attend)


def cache_share(alpha: jax.Array, length: int, sink: int, recent: int) -> jax.Array:
    """Cache of heads that are full (1) or local (0), as a share of that of full heads; a scalar.

    Args:
      alpha: [layers, K].
      length: tokens of a sequence.
      sink, recent: of the local heads.
    """
    local = min(sink + recent, length) / length
    return jnp.mean(jnp.where(alpha > 0, 1.0, local))


def most(scores: jax.Array, count: int) -> jax.Array:
    """Gates of 1 for the `count` heads of the highest scores [layers, K] and of 0 for the others.

    Of equal scores the first ones are highest.
    """
    order = jnp.argsort(-scores.reshape(-1), stable=True)
    ranks = jnp.argsort(order)
    return (ranks < count).astype(jnp.float32).reshape(scores.shape)
