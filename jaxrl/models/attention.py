"""Attention through one door: grouped queries, an explicit mask, fp32 softmax.

Many queries go to a kernel that never holds the scores: cuDNN's on GPU, splash attention on TPU.
A mask is vectors, of which each makes what it needs at a time, so trees of shared prompts are as
exact there as in plain XLA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from flax import struct

from jaxrl.models.config import DecoderConfig, Kernel
from jaxrl.models.linear import precision

_BLOCK = 128
"""Queries, and keys, that splash attention takes at a time; fewer are left to XLA."""
_PIECE = 2048
"""Queries whose mask splash attention holds at a time."""
_CUDNN_HEAD = 256
"""Features of the largest head that cuDNN has on any GPU; before Hopper it is 128."""


@struct.dataclass
class Mask:
    """What each query sees, as vectors; a kernel computes the part of it that it needs at a time.

    Query t sees key s iff `s <= index[t] < until[s]` and, under a window, it lies fewer than
    `window` positions behind or is one of the first `sink` of its sequence, and, under chunks, in
    the query's chunk. Keys are numbered by their place in the row or cache.
    """

    index: jax.Array
    """[B, T] int32, the place of each query's own key: the last that it sees."""
    until: jax.Array | None = None
    """[B, S] int32, the first place whose query no longer sees the key; None: all later ones do."""
    positions: jax.Array | None = None
    """[B, T] int32, position of each query in its sequence; None: its `index`."""
    key_positions: jax.Array | None = None
    """[B, S] int32, position of each key in its sequence; None: its place."""
    window: jax.Array | None = None
    """Scalar int32, how many positions a query sees, its own included; None: all."""
    sink: jax.Array | None = None
    """Scalar int32, how many first positions a query sees beside its window; None: none."""
    chunk: jax.Array | None = None
    """Scalar int32, positions of a chunk, and a query sees those of its own; None: of all."""
    ordered: bool = struct.field(pytree_node=False, default=False)
    """Whether query t is known to see no key after the place t, so that those need not be read."""

    def part(self, start: int, end: int) -> Mask:
        """The queries from `start` to `end`, exclusive, and the keys before `end`."""
        until, key_positions = (
            None if x is None else x[:, :end] for x in (self.until, self.key_positions)
        )
        positions = None if self.positions is None else self.positions[:, start:end]
        index = self.index[:, start:end]
        return Mask(index, until, positions, key_positions, self.window, self.sink, self.chunk)

    def dense(self, keys: int) -> jax.Array:
        """The mask over `keys` keys, [B, T, S] bool."""
        place = jnp.arange(keys)[None, None]
        index = self.index[:, :, None]
        mask = place <= index
        if self.until is not None:
            mask &= index < self.until[:, None]
        near = index if self.positions is None else self.positions[:, :, None]
        far = place if self.key_positions is None else self.key_positions[:, None]
        if self.chunk is not None:
            mask &= near // self.chunk == far // self.chunk
        if self.window is not None:
            inside = near - far < self.window
            mask &= inside if self.sink is None else inside | (far < self.sink)
        return mask


def tree_mask(visible_until: jax.Array, positions: jax.Array | None = None) -> Mask:
    """Mask of a packed row of trees.

    Tokens lie in depth-first order, so the descendants of a token are the contiguous run that ends
    before `visible_until`: query t sees key s iff `s <= t < visible_until[s]`. Plain segments,
    shared prompts and nested prefixes are all this one rule; padding has `visible_until` 0.

    Args:
      visible_until: [B, T] int32.
      positions: [B, T] int32, of each token in its own sequence; windows need them.
    """
    index = jnp.arange(visible_until.shape[-1], dtype=jnp.int32)[None]
    index = jnp.broadcast_to(index, visible_until.shape)
    return Mask(index, visible_until, positions, positions, ordered=True)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    kernel: Kernel = "auto",
    platform: str = "",
) -> jax.Array:
    """Scaled dot-product attention with grouped key-value heads.

    Args:
      q: [B, T, N, H].
      k: [B, S, K, H], with N a multiple of K.
      v: [B, S, K, V].
      mask: what each query sees; one that sees no key gets finite, meaningless output.
      scale: factor on the scores; None: H ** -0.5.
      softcap: bounds the scores s to `softcap * tanh(s / softcap)` (Gemma 2).
      sinks: [N] fp32, the score of a further key of each head, whose value is 0 (gpt-oss); None:
        there is none.
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
        kernel = choose(platform, q, k, v, softcap) if sinks is None else "xla"
    if sinks is not None and kernel != "xla":
        raise ValueError(f"attention={kernel!r} has no attention sinks; use 'auto' or 'xla'")
    match kernel:
        case "xla":
            attend_block = functools.partial(_xla, scale=scale, softcap=softcap, sinks=sinks)
            return _by_blocks(attend_block, q, k, v, mask)
        case "splash":
            emulated = platform != "tpu"
            return splash(q, k, v, mask, scale=scale, softcap=softcap, interpret=emulated)
        case "cudnn" if softcap is None:
            attend_block = functools.partial(_cudnn, scale=scale)
            return _by_blocks(attend_block, q, k, v, mask)
        case "cudnn":
            raise ValueError(f"attention='cudnn' has no softcap={softcap}; use 'auto' or 'xla'")
    raise ValueError(f"attention={kernel!r}: choose auto, xla, cudnn or splash")


def check(config: DecoderConfig) -> None:
    """Refuse a kernel that cannot compute a decoder's attention on any device.

    Raises:
      ValueError: `attention` names one; the message says what it lacks, and what to use.
    """
    c, m = config, config.latent
    sizes = {c.head_dim, c.kinds.global_head_dim} if c.kinds else {c.head_dim}
    sizes = {m.nope_dim + m.rope_dim, m.kv_rank + m.rope_dim} if m else sizes
    odd = sorted(size for size in sizes if size > _CUDNN_HEAD or size % 8)
    lacking = {
        "attention sinks": ("cudnn", "splash") if c.sinks else (),
        f"softcap={c.attention_softcap}": () if c.attention_softcap is None else ("cudnn",),
        f"compute_dtype={c.dtype!r}, only bfloat16": ("cudnn",) if c.dtype == "float32" else (),
        f"heads of {odd} features, only of multiples of 8 up to {_CUDNN_HEAD}": ("cudnn",)
        if odd
        else (),
    }
    for what, kernels in lacking.items():
        if c.attention in kernels:
            raise ValueError(f"attention={c.attention!r} has no {what}; use 'auto' or 'xla'")


def choose(
    platform: str, q: jax.Array, k: jax.Array, v: jax.Array, softcap: float | None
) -> Kernel:
    """The kernel that is expected to be fastest of those that serve; shapes as in `attend`.

    No device has measured it yet: `python -m tests.accelerator` lists where another was faster.
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
    mask: Mask,
    *,
    scale: float,
    softcap: float | None = None,
    interpret: bool = False,
) -> jax.Array:
    """`attend` by JAX's Pallas kernel for TPU, which skips the blocks that the mask leaves empty.

    Its library takes a mask as a matrix, of which it makes blocks of one byte a pair of tokens, in
    two orders. So it is given `_PIECE` queries at a time, of one row, and makes their blocks again
    in the backward pass. Lengths are padded to multiples of 128.

    Args:
      q: as the rest, see `attend`.
      k: keys.
      v: values.
      mask: what each query sees.
      scale: factor on the scores.
      softcap: bound on the scores.
      interpret: emulate the kernel, on any platform.
    """
    # a tenth of a second, which other kernels need not take
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    (b, t, n), s = q.shape[:3], k.shape[1]
    size = min(_PIECE, t + -t % _BLOCK)
    query_padding, key_padding = -t % size, -s % _BLOCK

    def kernel(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask) -> jax.Array:
        attention = splash_attention_kernel.make_splash_mha_single_device(
            _seeing(mask.dense(s + key_padding)), attn_logits_soft_cap=softcap, interpret=interpret
        )
        # a label for profiles alone, which inside jit is traced and then cannot be read
        attention.fwd_mask_info = attention.fwd_mask_info._replace(is_dynamic_mask=None)
        return attention(q, k, v)

    @functools.partial(jax.checkpoint, policy=_but_masks, prevent_cse=False)
    def piece(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask) -> jax.Array:
        mask = jax.tree.map(lambda x: x[None] if x.ndim else x, mask)
        return (_in_fp32(kernel) if q.dtype == jnp.float32 else kernel)(q, k, v, mask)

    def row(inputs: tuple[jax.Array, ...]) -> jax.Array:
        q, k, v, queries, keys = inputs
        return jax.lax.map(
            lambda part: piece(
                part[0],
                k,
                v,
                Mask(part[1], keys[0], part[2], keys[1], mask.window, mask.sink, mask.chunk),
            ),
            (q, *queries),
        )

    def pad(x: jax.Array | None, padding: int) -> jax.Array | None:
        if x is None:
            return None
        x = jnp.broadcast_to(x, (b, *x.shape[1:]))
        return jnp.pad(x, [(0, padding if axis == 1 else 0) for axis in range(x.ndim)])

    def pieces(x: jax.Array | None, padding: int) -> jax.Array | None:
        return None if x is None else pad(x, padding).reshape(b, -1, size, *x.shape[2:])

    queries = pieces(mask.index, query_padding), pieces(mask.positions, query_padding)
    keys = pad(mask.until, key_padding), pad(mask.key_positions, key_padding)
    q = (q * jnp.asarray(scale, q.dtype)).astype(q.dtype)
    q, k, v = pieces(q, query_padding).swapaxes(2, 3), pad(k, key_padding), pad(v, key_padding)
    # a piece at a time: the kernel takes one mask, and its grid is sequential in any case
    y = jax.lax.map(row, (q, k.swapaxes(1, 2), v.swapaxes(1, 2), queries, keys))
    return y.swapaxes(2, 3).reshape(b, -1, n, v.shape[-1])[:, :t].astype(v.dtype)


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, scale: float) -> jax.Array:
    # The library takes a mask as a bias of 2 bytes a pair of tokens: that of a block at a time.
    @functools.partial(jax.checkpoint, policy=_but_masks, prevent_cse=False)
    def block(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask) -> jax.Array:
        dense_mask = _seeing(mask.dense(k.shape[1]))[:, None]
        try:
            return jax.nn.dot_product_attention(
                q, k, v, mask=dense_mask, scale=scale, implementation="cudnn"
            )
        except NotImplementedError as error:  # by the device, of which a config knows nothing
            raise ValueError(f"attention='cudnn': {error} Use 'auto' or 'xla'") from error

    return block(q, k, v, mask)


def _in_fp32(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function whose products of fp32 are computed in fp32, in the backward pass too.

    For one that takes no `precision`; the setting of JAX holds while it is traced, which for the
    backward pass is later.
    """
    exact = functools.partial(jax.default_matmul_precision, "highest")

    def forward(*args: Any) -> tuple[jax.Array, Any]:
        with exact():
            return jax.vjp(function, *args)

    def backward(pull: Callable[..., Any], dy: jax.Array) -> Any:
        with exact():
            return pull(dy)

    @jax.custom_vjp
    def run(*args: Any) -> jax.Array:
        with exact():
            return function(*args)

    run.defvjp(forward, backward)
    return run


def _but_masks(primitive: jax.extend.core.Primitive, *inputs: Any, **_: Any) -> bool:
    """What `jax.checkpoint` keeps: all but masks, which are made of vectors of integers."""
    bias = primitive.name in ("select_n", "broadcast_in_dim")  # a mask in floating point
    return not bias and any(jnp.issubdtype(x.dtype, jnp.floating) for x in inputs)


def _seeing(mask: jax.Array) -> jax.Array:
    """The mask, where a query that saw nothing sees the first key: kernels divide by the sum."""
    return mask.at[:, :, 0].set(mask[:, :, 0] | ~jnp.any(mask, axis=-1))


def _by_blocks(
    attend_block: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask
) -> jax.Array:
    """An ordered row in up to eight blocks of queries, none of which reads keys that come later."""
    if not mask.ordered:
        return attend_block(q, k, v, mask)
    t, blocks = q.shape[1], []
    size = -(-t // (8 * _BLOCK)) * _BLOCK
    for start, end in ((start, min(start + size, t)) for start in range(0, t, size)):
        part, keys = mask.part(start, end), (k[:, :end], v[:, :end])
        if blocks:  # else XLA computes the masks of all blocks at once, ahead of the layers
            part, _ = jax.lax.optimization_barrier((part, blocks[-1]))
        blocks.append(attend_block(q[:, start:end], *keys, part))
    return jnp.concatenate(blocks, axis=1)


def _xla(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    scale: float,
    softcap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    b, t, n, h = q.shape
    # adding, unlike choosing, leaves nothing of the size of the scores to the backward pass
    unseen = jnp.where(mask.dense(k.shape[1]), 0.0, jnp.finfo(jnp.float32).min)[:, None]
    # Heads first, the queries of a head's group as its rows: a cache that lies so is read in place.
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    rows = (b, k.shape[1], n // k.shape[1] * t)
    q = q.reshape(*rows, h)
    einsum = functools.partial(jnp.einsum, precision=precision(q.dtype))
    scores = einsum("bkqh,bksh->bkqs", q, k, preferred_element_type=jnp.float32) * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = scores.reshape(b, n, t, -1)
    scores = scores + unseen
    if sinks is None:
        weights = jax.nn.softmax(scores, axis=-1)
    else:
        last = jnp.broadcast_to(sinks.astype(jnp.float32)[:, None, None], (*scores.shape[:-1], 1))
        weights = jax.nn.softmax(jnp.concatenate([scores, last], axis=-1), axis=-1)[..., :-1]
    weights = weights.astype(v.dtype).reshape(*rows, -1)
    y = einsum("bkqs,bksh->bkqh", weights, v)
    return jnp.swapaxes(y.reshape(b, n, t, -1), 1, 2)
