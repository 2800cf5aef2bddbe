"""Attention kernels against an fp64 reference, with the masks of training and of decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.models import attention
from jaxrl.models.attention import Mask
from jaxrl.training import tries
from jaxrl.training.tries import Branch
from tests.accelerator.device import seconds
from tests.accelerator.settings import Report, Settings, remaining

Attend = Callable[..., jax.Array]
"""`(q, k, v, visible_until [B, T]) -> [B, T, N, H]`."""
_NAMES = ("out", "dq", "dk", "dv")
DTYPES = ("float32", "bfloat16")


def measure(settings: Settings, report: Report) -> None:
    """Errors and seconds of each kernel, by dtype and mask; and of the decoding step."""
    length, heads, shared = settings.sized((2048, 16, 8), (256, 4, 2))
    size, rows = settings.sized(128, 16), 2
    platform = jax.default_backend()
    for slots, width in settings.sized([(128, 512), (128, 2048)], [(8, 64)]):
        with report.attempt(f"decode {slots}x{width}"):
            report.add(f"decode {slots}x{width}", decode(slots, width, heads, shared, size))
    inputs = draw(rows, length, heads, shared, size)
    every = {
        name: jnp.broadcast_to(jnp.asarray(until, jnp.int32), (rows, length))
        for name, until in masks(length).items()
    }
    exact = {name: reference(*inputs, until) for name, until in every.items()}
    auto = {d: attention.choose(platform, *(x.astype(d) for x in inputs), None) for d in DTYPES}
    report.add("auto", auto)
    for dtype, which in kernels(platform):
        cast = [x.astype(dtype) for x in inputs]
        run = jax.jit(functools.partial(outcome, KERNELS[which]))
        few = {"pallas-mosaic": 1, "pallas-triton": 2} | (
            {"splash": 1} if platform == "cpu" else {}
        )
        served = list(every)[: few.get(which, len(every))]
        for mask in served:
            name = f"{mask} {dtype} {which}"
            if remaining() < 10:
                report.skip(name, "the limit of this part is near")
                continue
            with report.attempt(name):
                until = every[mask]
                found = errors(run(*cast, until), exact[mask], until)
                found["both_seconds"] = seconds(run, *cast, until)
                report.add(name, found)


def masks(length: int) -> dict[str, np.ndarray]:
    """`visible_until` [L] of one sequence, of packed ones, of a shared prompt, and of a trie."""
    part, group = length // 4, length // 8
    packed = (np.arange(length) // part + 1) * part
    packed[-part // 4 :] = 0  # padding
    shared = np.full(length, length)
    for start in range(2 * group, length, group):
        shared[start : start + group] = start + group
    return {
        "causal": np.full(length, length),
        "packed": packed,
        "shared prompt": shared,
        "trie": trie(length),
    }


def trie(length: int) -> np.ndarray:
    """`visible_until` of a prompt with two branches, of which one has three branches of its own."""
    unit = length // 8
    prompt = np.zeros(unit, np.int32)

    def branch(start: int, size: int, sees: int, *inner: Branch) -> Branch:
        return Branch(prompt, 0, start, start + size, start + size, sees, inner)

    nested = [branch(n, unit, unit // 2 * (1 + n % 2)) for n in range(3)]
    top = [branch(0, 2 * unit, unit, *nested), branch(9, unit, unit // 2)]
    until = np.zeros(length, np.int32)
    tries.lay(top, 0, 0, unit, until)
    return until


def kernels(platform: str) -> list[tuple[str, str]]:
    """What can be compared here, as (dtype, kernel): ours first, then JAX's examples.

    On CPU splash attention is emulated, which rehearses it.
    """
    plain = [(dtype, "xla") for dtype in DTYPES]
    if platform == "gpu":
        outside = [(dtype, "pallas-triton") for dtype in reversed(DTYPES)]
        return [*plain, ("bfloat16", "cudnn"), *outside, ("bfloat16", "pallas-mosaic")]
    dtypes = ("bfloat16",) if platform == "cpu" else DTYPES
    return [*plain, *((dtype, "splash") for dtype in dtypes)]


def _ours(which: Any, q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array) -> jax.Array:
    """Attention as the model calls it."""
    return attention.attend(q, k, v, attention.tree_mask(until), kernel=which)


def _triton(q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array) -> jax.Array:
    """JAX's example kernel for segments, which needs keys for every head."""
    from jax.experimental.pallas.ops.gpu import attention as pallas

    sizes = pallas.BlockSizes(
        block_q=64, block_k=64, block_q_dkv=32, block_kv_dkv=32, block_q_dq=32, block_kv_dq=32
    )
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scale = q.shape[-1] ** -0.5
    return pallas.mha(q, k, v, until, sm_scale=scale, causal=True, block_sizes=sizes)


def _mosaic(q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array) -> jax.Array:
    """JAX's example kernel for Hopper, of one sequence alone; it does not scale the scores."""
    from jax.experimental.pallas.ops.gpu import attention_mgpu as mosaic

    config = mosaic.TuningConfig(
        block_q=64, block_kv=64, max_concurrent_steps=2, causal=True,
        block_q_dkv=64, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64,
    )  # fmt: skip
    scaled = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    return mosaic.attention(scaled, k, v, config)


KERNELS: dict[str, Attend] = {
    "xla": functools.partial(_ours, "xla"),
    "cudnn": functools.partial(_ours, "cudnn"),
    "splash": functools.partial(_ours, "splash"),
    "pallas-triton": _triton,
    "pallas-mosaic": _mosaic,
}


def draw(rows: int, length: int, heads: int, shared: int, size: int) -> list[jax.Array]:
    """Random queries, keys and values in fp32, which bf16 holds exactly."""
    keys = jax.random.split(jax.random.key(0), 3)
    counts = (heads, shared, shared)
    return [
        jax.random.normal(key, (rows, length, n, size), jnp.bfloat16).astype(jnp.float32)
        for key, n in zip(keys, counts, strict=True)
    ]


def reference(q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array) -> dict[str, jax.Array]:
    """Output and gradients in fp64, by the rule of masks as it is stated."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array) -> jax.Array:
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
        query, key = jnp.arange(q.shape[1])[:, None], jnp.arange(q.shape[1])[None]
        seen = ((key <= query) & (query < until[:, None]))[:, None]
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e300), axis=-1)
        return jnp.einsum("bnts,bsnh->btnh", weights, v)

    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in (q, k, v)]
        found = jax.jit(functools.partial(outcome, attend))(*wide, until)
        return {name: jnp.asarray(x, jnp.float32) for name, x in found.items()}


def outcome(
    attend: Attend, q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array
) -> dict[str, jax.Array]:
    """Output and gradients, of a loss that padding has no part in."""
    random = jax.random.normal(jax.random.key(9), q.shape, jnp.float32)
    weight = jnp.where(until[:, :, None, None] > 0, random, 0.0)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = attend(q, k, v, until)
        return jnp.sum(y.astype(jnp.promote_types(y.dtype, jnp.float32)) * weight), y

    (_, y), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    return dict(zip(_NAMES, (y, *gradients), strict=True))


def errors(
    found: dict[str, jax.Array], exact: dict[str, jax.Array], until: jax.Array
) -> dict[str, float]:
    """Relative errors in norm, over rows that are no padding."""
    seen = until[:, :, None, None] > 0

    def error(name: str) -> float:
        gap = jnp.where(seen, found[name].astype(jnp.float32) - exact[name], 0.0)
        return float(jnp.linalg.norm(gap) / jnp.linalg.norm(jnp.where(seen, exact[name], 0.0)))

    return {name: error(name) for name in exact}


def decode(slots: int, width: int, heads: int, shared: int, size: int) -> dict[str, float]:
    """One query a slot over caches that lie heads first, each filled to another length."""
    keys = jax.random.split(jax.random.key(3), 3)
    index = jax.random.randint(jax.random.key(4), (slots, 1), width // 4, width)
    q = jax.random.normal(keys[0], (slots, 1, heads, size), jnp.bfloat16)
    cache = (slots, shared, width, size)
    k, v = (jax.random.normal(key, cache, jnp.bfloat16) for key in keys[1:])

    @jax.jit
    def step(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (jnp.swapaxes(x, 1, 2) for x in (k, v))
        return attention.attend(q, k, v, Mask(index), kernel="auto")

    exact = decoded(q, k, v, index)

    def error(dtype: str) -> float:
        gap = step(*(x.astype(dtype) for x in (q, k, v))).astype(jnp.float32) - exact
        return float(jnp.linalg.norm(gap) / jnp.linalg.norm(exact))

    spent = seconds(step, q, k, v)
    return {
        "error": error("bfloat16"),
        "error_float32": error("float32"),
        "seconds": spent,
        "bytes_a_second": (k.nbytes + v.nbytes) / spent,
    }


def decoded(q: jax.Array, k: jax.Array, v: jax.Array, index: jax.Array) -> jax.Array:
    """The decoding step in fp64: query [B, 1, N, H], caches [B, K, S, H], last key seen [B, 1]."""

    @jax.jit
    def step(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
        scores = jnp.einsum("bkgh,bksh->bkgs", grouped, k) * q.shape[-1] ** -0.5
        seen = (jnp.arange(k.shape[2]) <= index)[:, None, None]
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e300), axis=-1)
        return jnp.einsum("bkgs,bksh->bkgh", weights, v).reshape(q.shape)

    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in (q, k, v)]
        return jnp.asarray(step(*wide), jnp.float32)
