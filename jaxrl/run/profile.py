"""A few steps under `jax.profiler`: a trace for xprof or perfetto, and its top costs as text."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl.run.context import Callbacks


class Cost(NamedTuple):
    """What one kind of operation took."""

    program: str
    """Name of the compiled function."""
    operation: str
    calls: int
    seconds: float
    """Summed over calls and devices, operations within it left out."""


def profiled(watch: Callbacks, directory: Path, *, first: int = 3, steps: int = 3) -> Callbacks:
    """`watch`, which also traces some steps into `directory` and prints the top costs.

    Args:
      watch: the callbacks of the run.
      directory: where the trace goes; `xprof --logdir DIRECTORY` shows it, and ui.perfetto.dev
        opens the `.trace.json.gz` in it.
      first: the first step traced; at least 2, as the first step compiles.
      steps: how many; a run that ends earlier leaves no trace.

    Raises:
      ValueError: `first` or `steps` too small.
    """
    if first < 2 or steps < 1:
        raise ValueError(f"first={first}, steps={steps}: trace 1 step or more, from step 2 on")
    step_count = 0  # of this process: one that continues a run compiles in its first step as well

    def step(number: int, metrics: dict[str, float]) -> None:
        nonlocal step_count
        watch.step(number, metrics)
        step_count += 1
        if step_count == first - 1:
            jax.profiler.start_trace(directory)
        elif step_count == first - 1 + steps:
            jax.profiler.stop_trace()
            watch.note(f"trace of {steps} steps in {directory}\n{listing(costs(directory))}")

    return watch._replace(step=step)


def costs(directory: Path) -> list[Cost]:
    """Operations of the newest trace in a directory, the costliest first.

    Raises:
      FileNotFoundError: no trace there.
    """
    traces = sorted(directory.glob("plugins/profile/*/*.trace.json.gz"))
    if not traces:
        raise FileNotFoundError(f"{directory} holds no trace; has the run come to its last step?")
    with gzip.open(traces[-1]) as file:
        return tally(json.load(file)["traceEvents"])


def tally(events: Iterable[dict[str, Any]]) -> list[Cost]:
    """Costs from events of the Chrome trace format, times in microseconds.

    An operation such as a loop contains others on its thread: their time is theirs alone.
    """
    threads = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and "hlo_op" in event.get("args", ()):
            threads[event["pid"], event["tid"]].append(event)
    op_times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for thread in threads.values():
        around: list[tuple[float, list[float], int]] = []  # end, times and place of what is open
        for event in sorted(thread, key=lambda e: (e["ts"], -e["dur"])):
            while around and around[-1][0] <= event["ts"]:
                around.pop()
            if around:
                _, times, place = around[-1]
                times[place] -= event["dur"]
            args = event["args"]
            times = op_times[args.get("hlo_module", ""), args["hlo_op"]]
            times.append(event["dur"])
            around.append((event["ts"] + event["dur"], times, len(times) - 1))
    op_costs = [Cost(*name, len(times), sum(times) * 1e-6) for name, times in op_times.items()]
    return sorted(op_costs, key=lambda cost: -cost.seconds)


def listing(op_costs: list[Cost], most: int = 15) -> str:
    """The top costs as lines."""
    total = sum(cost.seconds for cost in op_costs) or 1.0
    return "\n".join(
        f"{cost.seconds:9.4f} s {cost.seconds / total:6.1%} {cost.calls:6} x  "
        f"{cost.program}: {cost.operation}"
        for cost in op_costs[:most]
    )
