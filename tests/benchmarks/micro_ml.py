"""Seconds to score an answer of `micro_ml`, by the rows of its table (SandMLE's micro tasks).

python -m tests.benchmarks.micro_ml
"""

from __future__ import annotations

import statistics
import time

from jaxrl.data import tasks
from jaxrl.data.scoring.pool import score_completion

ROWS = (100, 1_000, 10_000)
REPEATS = 3


def seconds(rows: int) -> float:
    """The median of a few answers, each to a table of its own."""
    task = tasks.get("micro_ml", rows=100, ood_rows=rows, wall_s=300.0)
    taken = []
    for index in range(REPEATS):
        problem = task.problem("ood", 0, index)
        answer, start = task.gold(problem), time.perf_counter()
        score = score_completion(task, problem, answer)
        taken.append(time.perf_counter() - start)
        if score.error is not None:
            raise RuntimeError(score.error)
    return statistics.median(taken)


def main() -> None:
    """Print the table."""
    found = {rows: seconds(rows) for rows in ROWS}
    print("| rows | seconds for an answer | times those of 100 rows |\n|---|---|---|")
    for rows, taken in found.items():
        print(f"| {rows:,} | {taken:.3f} | {taken / found[ROWS[0]]:.1f} |")


if __name__ == "__main__":
    main()
