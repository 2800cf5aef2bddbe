"""What every system measures in the same way; imports nothing but the standard library."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_job() -> dict[str, Any]:
    """The workload that the command line names, with `out`, where the result goes."""
    return json.loads(Path(sys.argv[1]).read_text())


def timed(owner: Any, name: str, phase: str, seconds: dict[str, float]) -> None:
    """Replace a method of an object by one whose time is added to a phase."""
    method = getattr(owner, name)

    def measured(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start

    setattr(owner, name, measured)


def best_rate(multiply: Callable[[], None], flops: float, seconds: float = 1.5) -> float:
    """Floating-point operations a second of the fastest of many equal multiplications."""
    multiply()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        multiply()
        best = min(best, time.perf_counter() - start)
    return flops / best


def report(job: dict[str, Any], steps: list[dict[str, float]], **measured: Any) -> None:
    """Write the result so far: phases of every step, and memory.

    `peak_gb` is the process's greatest resident memory from its start, loading and compilation
    included; `steady_gb` that of the steps after the first.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    peak, out = int(line.split()[1]) * 1024 / 1e9, Path(job["out"])
    before = json.loads(out.read_text()) if out.exists() else {"peak_gb": 0.0}
    if not before.get("steps"):
        Path("/proc/self/clear_refs").write_text("5")  # starts the peak anew
    result = {
        "row": job["row"],
        "system": job["system"],
        "steps": steps,
        "peak_gb": max(peak, before["peak_gb"]),
        "steady_gb": peak if before.get("steps") else None,
        "load": os.getloadavg()[0],
        **measured,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
