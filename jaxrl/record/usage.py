"""Resource metrics of a run: peak memory and the number of compiled programs."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
from jax import monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def count_compilations() -> Iterator[Callable[[], dict[str, float]]]:
    """A function that gives the metrics now; compilations are counted while the context is open.

    - `compilations`: programs compiled, or taken from the compilation cache on disk, so far. After
      warm-up a new one is a shape that was not budgeted.
    - `memory/host`: bytes, the most that this process has held.
    - `memory/device`: bytes, the most that one of its devices has held; absent where the device
      does not say, as on CPU.
    """
    count = 0

    def listen(event: str, seconds: float, **_: str | int) -> None:
        nonlocal count
        count += event == _COMPILED

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield lambda: {"compilations": float(count)} | memory()
    finally:
        monitoring.unregister_event_duration_listener(listen)


def memory() -> dict[str, float]:
    """Peak memory so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"memory/host": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)}
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    devices = [float(s["peak_bytes_in_use"]) for s in stats if "peak_bytes_in_use" in s]
    return peak | ({"memory/device": max(devices)} if devices else {})
