"""What the device is, and the rates that other parts are compared with."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.accelerator.settings import Report, Settings

_QUERY = "name,memory.total,driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
ROWS = (16, 128, 1024, 8192)
"""Of the products by which a plan knows a device: slots of a sampler, tokens of a micro-batch."""


def seconds(function: Callable[..., Any], *arguments: Any, repeats: int = 10) -> float:
    """Median seconds of a call, after two that warm up; the device is waited for each time."""
    for _ in range(2):
        jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(settings: Settings, report: Report) -> None:
    """Identity, memory, products and copies."""
    device = jax.devices()[0]
    report.add("device", {"platform": device.platform, "kind": device.device_kind})
    report.add("memory", {k: v for k, v in (device.memory_stats() or {}).items() if "bytes" in k})
    report.add("host", {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]})
    with report.attempt("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        if device.platform == "gpu":
            said = subprocess.run(command, capture_output=True, text=True, timeout=20)
            report.add("nvidia-smi", said.stdout.strip())
    size = settings.sized(8192, 256)
    with report.attempt("matmul"):
        report.add("matmul_flops", matmuls(size))
    with report.attempt("matmul by rows"):
        report.add("matmul_flops_by_rows", matmuls_by_rows(size))
    with report.attempt("copy"):
        report.add("copy_bytes", copies(settings.sized(2**31, 2**22)))
    with report.attempt("transfer"):
        report.add("host_bytes", transfers(settings.sized(2**28, 2**20)))
    with report.attempt("launch"):
        report.add("launch_seconds", launches())
    with report.attempt("torch"):
        report.add("torch", of_torch(size))


def matmuls(size: int) -> dict[str, float]:
    """Operations a second of square products of random matrices."""
    key, rates = jax.random.key(0), {}
    for name, dtype, precision in (
        ("bf16", jnp.bfloat16, "default"),
        ("tf32", jnp.float32, "default"),
        ("fp32", jnp.float32, "highest"),
    ):
        a = jax.random.normal(key, (size, size), dtype)
        product = jax.jit(lambda x, y, p=precision: jnp.matmul(x, y, precision=p))
        rates[name] = 2 * size**3 / seconds(product, a, a)
    return rates


def matmuls_by_rows(size: int) -> dict[int, float]:
    """Operations a second of bf16 products of few or many rows with one square matrix.

    Ten in a row within a program, so that no launch is counted; the matrix is larger than caches.
    """
    keys = jax.random.split(jax.random.key(5))
    matrix = jax.random.normal(keys[0], (size, size), jnp.bfloat16) * size**-0.5

    @jax.jit
    def chain(x: jax.Array, matrix: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 10, lambda _, x: x @ matrix, x)

    rates = {}
    for rows in ROWS:
        x = jax.random.normal(keys[1], (rows, size), jnp.bfloat16)
        rates[rows] = 20 * rows * size**2 / seconds(chain, x, matrix, repeats=5)
    return rates


def copies(size: int) -> dict[str, float]:
    """Bytes read and written a second by a pass over an array, and bytes read by a sum of one."""
    x = jax.random.bits(jax.random.key(1), (size // 4,), jnp.uint32)
    half = x[: size // 8].astype(jnp.bfloat16)
    add, total = jax.jit(lambda x: x + jnp.uint32(1)), jax.jit(lambda x: jnp.sum(x, dtype="f4"))
    return {
        "copy": 2 * x.nbytes / seconds(add, x),
        "read": half.nbytes / seconds(total, half),
    }


def transfers(size: int) -> dict[str, float]:
    """Bytes a second between host and device."""
    import numpy as np

    host = np.ones(size, np.uint8)
    there = jax.device_put(host)
    start = time.perf_counter()
    for _ in range(4):
        jax.device_put(host).block_until_ready()
    up = 4 * size / (time.perf_counter() - start)
    plus, times = jax.jit(lambda x, i: x + i), []
    for i in range(4):
        fresh = plus(there, jnp.uint8(i)).block_until_ready()
        start = time.perf_counter()
        np.asarray(fresh)
        times.append(time.perf_counter() - start)
    return {"to_device": up, "to_host": size / statistics.median(times)}


def launches() -> dict[str, float]:
    """Seconds of the smallest program, and of one step of a loop within a program."""
    one = jnp.float32(1)
    small = seconds(jax.jit(lambda x: x + 1), one, repeats=50)

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x) + i, x)

    return {"program": small, "loop_step": seconds(jax.jit(loop), one, repeats=5) / 1000}


def of_torch(size: int) -> dict[str, Any]:
    """The bf16 product by torch, as a check of the rate; empty without torch or its device."""
    try:
        import torch
    except ImportError:
        return {"skipped": "torch is not installed"}
    if not torch.cuda.is_available():
        return {"skipped": "torch sees no GPU"}
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
    return {"version": torch.__version__, "bf16": 20 * size**3 / (time.perf_counter() - start)}
