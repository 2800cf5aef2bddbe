"""Attention through one door: grouped queries, an explicit mask, fp32 softmax."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def tree_mask(visible_until: jax.Array) -> jax.Array:
    """Mask of a packed row of trees.

    Tokens lie in depth-first order, so the descendants of a token are the contiguous run that ends
    before `visible_until`: query t sees key s iff `s <= t < visible_until[s]`. Plain segments,
    shared prompts and nested prefixes are all this one rule; padding has `visible_until` 0.

    Args:
      visible_until: [B, T] int32.

    Returns:
      [B, T(query), T(key)] bool.
    """
    index = jnp.arange(visible_until.shape[-1])
    causal = index[:, None] >= index[None, :]
    return causal & (index[None, :, None] < visible_until[:, None, :])


def near(query_positions: jax.Array, key_positions: jax.Array, window: int) -> jax.Array:
    """Mask of a sliding window: a query sees the last `window` positions, its own included.

    Args:
      query_positions: [B, T] int32.
      key_positions: [B, S] int32.
      window: number of positions.

    Returns:
      [B, T, S] bool.
    """
    return query_positions[:, :, None] - key_positions[:, None, :] < window


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> jax.Array:
    """Scaled dot-product attention with grouped key-value heads.

    Args:
      q: [B, T, N, H].
      k: [B, S, K, H], with N a multiple of K.
      v: [B, S, K, V].
      mask: [B, T, S] bool; a query that sees no key gets finite, meaningless output.
      scale: factor on the scores; None: H ** -0.5.
      softcap: bounds the scores s to `softcap * tanh(s / softcap)` (Gemma 2).

    Returns:
      [B, T, N, V] in v's dtype.
    """
    b, t, n, h = q.shape
    scale = h**-0.5 if scale is None else scale
    # Heads first, the queries of a head's group as its rows: a cache that lies so is read in place.
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    rows = (b, k.shape[1], n // k.shape[1] * t)
    q = q.reshape(*rows, h)
    scores = jnp.einsum("bkqh,bksh->bkqs", q, k, preferred_element_type=jnp.float32) * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = scores.reshape(b, n, t, -1)
    scores = jnp.where(mask[:, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype).reshape(*rows, -1)
    y = jnp.einsum("bkqs,bksh->bkqh", weights, v)
    return jnp.swapaxes(y.reshape(b, n, t, -1), 1, 2)
