"""What the host does between fetching a step's metrics and submitting the next step's prompts.

    python -m tests.benchmarks.host_gap [--steps 60]

In this time the devices have nothing to do. It is given in milliseconds of the main thread's own
processor time and by the clock, as medians over steps of the quickstart, beside the median step.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from jaxrl.launch.recipes.ready import quickstart
from jaxrl.run import loop
from jaxrl.run import step as training_step
from jaxrl.sampling import sampler

_LEFT_OUT = 10
"""First steps, which compile."""


def measure(steps: int) -> dict[str, float]:
    """Medians over steps of the quickstart after a short warm start.

    Args:
      steps: of the run; the first ten are left out.

    Returns:
      `processor_ms`, `clock_ms` and `step_ms`.
    """
    fetched: list[tuple[float, float]] = []
    gaps: list[tuple[float, float]] = []
    seconds: list[float] = []

    def now() -> tuple[float, float]:
        return time.thread_time(), time.perf_counter()

    def combine(*args: Any) -> Any:
        fetched.append(now())
        return combined(*args)

    def submit(*args: Any, **kwargs: Any) -> Any:
        if fetched:
            gaps.append(tuple(b - a for a, b in zip(fetched.pop(), now(), strict=True)))
        return submitted(*args, **kwargs)

    combined: Callable[..., Any] = training_step.combine
    submitted: Callable[..., Any] = sampler.submit
    config = quickstart.config()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(training_step, "combine", combine),
        mock.patch.object(sampler, "submit", submit),
    ):
        config = dataclasses.replace(
            config,
            run_dir=f"{folder}/run",
            steps=steps,
            warm_start=dataclasses.replace(config.warm_start, steps=20),
            eval=dataclasses.replace(config.eval, problems=64),
        )
        loop.train(config, loop.Callbacks(step=lambda _, m: seconds.append(m["time/step"])))
    processor, clock = zip(*gaps[_LEFT_OUT:], strict=True)
    return {
        "processor_ms": 1e3 * statistics.median(processor),
        "clock_ms": 1e3 * statistics.median(clock),
        "step_ms": 1e3 * statistics.median(seconds[_LEFT_OUT:]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    for name, value in measure(parser.parse_args().steps).items():
        print(f"{name}: {value:.1f}")
