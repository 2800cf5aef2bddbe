"""Scores a second, by number of workers: math answers and code runs in the sandbox.

    python -m tests.benchmarks.scoring --workers 0 1 2 4 --math 10000 --code 1000

One line of JSON a measurement. Workers are started and warm before the clock starts; 0 scores in
the calling thread, without limits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time

from jaxrl.data import tasks
from jaxrl.data.rewards import math
from jaxrl.data.sandbox import runner
from jaxrl.data.scoring import pool as scoring
from jaxrl.data.types import Problem, Task


def math_task() -> Task:
    """Fractions."""

    def problem(split: str, seed: int, index: int) -> Problem:
        rng = random.Random(index)
        return Problem(str(index), "", rf"\frac{{{rng.randint(1, 99)}}}{{{rng.randint(2, 99)}}}")

    return Task("math_answers", problem, math.equivalent())


def items(task: Task, count: int) -> list[tuple[Problem, str]]:
    """Problems with completions, every second one the solution of the problem before."""
    problems = [task.problem("train", 0, index) for index in range(count)]
    right = [task.gold(p) if task.gold else f"so \\boxed{{{p.answer}}}" for p in problems]
    return [(p, right[i - i % 2]) for i, p in enumerate(problems)]


def measure(name: str, count: int, workers: int) -> dict[str, object]:
    """One run."""
    task = tasks.get(name)
    work = items(task, count)
    with scoring.open_pool(name, workers=workers, time_limit_s=30) as pool:
        pool.score(work[:1] * 4 * max(workers, 1))
        start = time.perf_counter()
        scores = pool.score(work)
        seconds = time.perf_counter() - start
    return {
        "benchmark": f"scoring/{name.rpartition(':')[2]}",
        "workers": workers,
        "items": count,
        "seconds": round(seconds, 3),
        "per_second": round(count / seconds, 1),
        "right": sum(s.value == 1.0 for s in scores),
        "errors": sum(s.error is not None for s in scores),
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--math", type=int, default=10_000, help="math answers")
    parser.add_argument("--code", type=int, default=1_000, help="programs, each with 4 tests")
    arguments = parser.parse_args()
    print(json.dumps({"sandbox": str(runner.check())}))
    for name, count in [(f"{__spec__.name}:math_task", arguments.math), ("code", arguments.code)]:
        for workers in arguments.workers if count else []:
            print(json.dumps(measure(name, count, workers)), flush=True)


if __name__ == "__main__":
    main()
