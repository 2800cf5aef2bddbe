"""Attention through one door: grouped queries, an explicit mask, fp32 softmax.

Many queries go to a kernel that never holds the scores: cuDNN's on GPU, splash attention on TPU.
Both take the mask as it is, so trees of shared prompts are as exact there as in plain XLA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

from models.config import Kernel

_BLOCK = 128
"""Queries, and keys, that splash attention takes at a time; fewer are left to XLA."""


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
    kernel: Kernel = "auto",
    platform: str = "",
) -> jax.Array:
    """Scaled dot-product attention with grouped key-value heads.

    Args:
      q: [B, T, N, H].
      k: [B, S, K, H], with N a multiple of K.
      v: [B, S, K, V].
      mask: [B, T, S] bool; a query that sees no key gets finite, meaningless output. Where T is S
        the tokens are those of one row in order, and no query sees a later key.
      scale: factor on the scores; None: H ** -0.5.
      softcap: bounds the scores s to `softcap * tanh(s / softcap)` (Gemma 2).
      kernel: what computes it; `auto` is `choose` for the platform. Splash attention is emulated,
        slowly, where that is no TPU.
      platform: tpu, gpu or cpu, that this is compiled for; by default the one JAX runs on.

    Returns:
      [B, T, N, V] in v's dtype.

    Raises:
      ValueError: a kernel that cannot compute this.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    platform = platform or jax.default_backend()
    if kernel == "auto":
        kernel = choose(platform, q, k, v, softcap)
    match kernel:
        case "xla":
            whole = functools.partial(_xla, scale=scale, softcap=softcap)
            return _by_blocks(whole, q, k, v, mask)
        case "splash":
            emulated = platform != "tpu"
            return splash(q, k, v, mask, scale=scale, softcap=softcap, interpret=emulated)
        case "cudnn" if softcap is None:
            return jax.nn.dot_product_attention(
                q, k, v, mask=_seeing(mask)[:, None], scale=scale, implementation="cudnn"
            )
        case "cudnn":
            raise ValueError(f"attention='cudnn' has no softcap={softcap}; use 'auto' or 'xla'")
    raise ValueError(f"attention={kernel!r}: choose auto, xla, cudnn or splash")


def choose(
    platform: str, q: jax.Array, k: jax.Array, v: jax.Array, softcap: float | None
) -> Kernel:
    """The fastest kernel that serves; shapes as in `attend`.

    A few queries, as in decoding, read the keys once whatever the kernel: XLA. On TPU splash
    attention serves all else. On GPU cuDNN serves 16-bit heads of equal size, up to 128 and a
    multiple of 8, without a soft-cap; the rest is XLA's.
    """
    if min(q.shape[1], k.shape[1]) < _BLOCK:
        return "xla"
    if platform == "tpu":
        return "splash"
    size, even = q.shape[-1], q.shape[1] % 2 == k.shape[1] % 2 == 0
    served = q.dtype in (jnp.bfloat16, jnp.float16) and size <= 128 and size % 8 == 0
    if platform == "gpu" and served and even and size == v.shape[-1] and softcap is None:
        return "cudnn"
    return "xla"


def splash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    *,
    scale: float,
    softcap: float | None = None,
    interpret: bool = False,
) -> jax.Array:
    """`attend` by JAX's Pallas kernel for TPU, which skips the blocks that the mask leaves empty.

    A row's mask is one byte a pair of tokens, for all heads together. Lengths are padded to
    multiples of 128.

    Args:
      q: as the rest, see `attend`.
      k: keys.
      v: values.
      mask: what each query sees.
      scale: factor on the scores.
      softcap: bound on the scores.
      interpret: emulate the kernel, on any platform.
    """
    t, s = mask.shape[1:]
    rows, columns = -t % _BLOCK, -s % _BLOCK

    def pad(x: jax.Array, more: int) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))).swapaxes(1, 2)

    def row(inputs: tuple[jax.Array, ...]) -> jax.Array:
        *qkv, seen = inputs
        attention = splash_attention_kernel.make_splash_mha_single_device(
            seen[None], attn_logits_soft_cap=softcap, interpret=interpret
        )
        # a label for profiles alone, which inside jit is traced and then cannot be read
        attention.fwd_mask_info = attention.fwd_mask_info._replace(is_dynamic_mask=None)
        return attention(*qkv)

    mask = _seeing(jnp.pad(mask, ((0, 0), (0, rows), (0, columns))))
    q = (q * jnp.asarray(scale, q.dtype)).astype(q.dtype)
    # a row at a time: the kernel takes one mask, and its grid is sequential in any case
    y = jax.lax.map(row, (pad(q, rows), pad(k, columns), pad(v, columns), mask))
    return y.swapaxes(1, 2)[:, :t].astype(v.dtype)


def _seeing(mask: jax.Array) -> jax.Array:
    """The mask, where a query that saw nothing sees the first key: kernels divide by the sum."""
    return mask.at[:, :, 0].set(mask[:, :, 0] | ~jnp.any(mask, axis=-1))


def _by_blocks(
    whole: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array
) -> jax.Array:
    """A long row in up to eight blocks of queries, none of which reads keys that come later."""
    t, s = mask.shape[1:]
    if t != s:
        return whole(q, k, v, mask)
    size = -(-t // (8 * _BLOCK)) * _BLOCK
    blocks = [
        whole(q[:, start:end], k[:, :end], v[:, :end], mask[:, start:end, :end])
        for start, end in ((start, start + size) for start in range(0, t, size))
    ]
    return jnp.concatenate(blocks, axis=1)


def _xla(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    scale: float,
    softcap: float | None,
) -> jax.Array:
    b, t, n, h = q.shape
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
