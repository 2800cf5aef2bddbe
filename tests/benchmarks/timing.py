"""Repeated timing, for benchmarks in whatever environment: the standard library alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable


def timed(
    workload: str,
    warm_up: Callable[[], object],
    run: Callable[[], int],
    repeats: int,
    seconds: float,
) -> None:
    """Print a line of JSON: useful tokens that `run` returned, and the seconds of each repeat.

    There is one repeat at least, and no further one after `seconds` in all.
    """
    warm_up()
    times: list[float] = []
    while not times or (len(times) < repeats and sum(times) < seconds):
        start = time.perf_counter()
        tokens = run()
        times.append(time.perf_counter() - start)
    rounded = [round(t, 3) for t in times]
    print(json.dumps({"workload": workload, "tokens": tokens, "seconds": rounded}), flush=True)
