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


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Scaled dot-product attention with grouped key-value heads.

    Args:
      q: [B, T, N, H].
      k: [B, S, K, H], with N a multiple of K.
      v: [B, S, K, H].
      mask: [B, T, S] bool; a query that sees no key gets finite, meaningless output.

    Returns:
      [B, T, N, H] in q's dtype.
    """
    b, t, n, h = q.shape
    groups = n // k.shape[2]
    q = q.reshape(b, t, k.shape[2], groups, h) * h**-0.5
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(b, t, n, h)


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding (Su et al. 2021), half-split pairing as in Llama checkpoints.

    Args:
      x: [B, T, N, H].
      positions: [B, T] int32.
      theta: base of the geometric frequency ladder.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[..., None, None].astype(jnp.float32) * frequency
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
