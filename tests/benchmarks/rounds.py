"""Runs of `tests.jaxrl.tiny` in turns, round after round, and the median time of what they do.

A run that repeats another does the same in each of its steps and chunks, so their times can be
compared one by one. Medians over rounds are not moved by what else the machine does for a while. A
round before the first compiles.
"""

import json
import shutil
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.record import jsonl
from tests.jaxrl import tiny

LOGS = ("metrics.jsonl", "chunks.jsonl", "schedule.jsonl")
Row = dict[str, Any]


def run(directory: Path, runs: Mapping[str, Mapping[str, Any]], rounds: int) -> None:
    """Run each in every round, in one process.

    Args:
      directory: gets a run of each name, that of the first round with the median times of all.
      runs: changes of the tiny config, by name.
      rounds: an odd number.
    """
    program = "tests.benchmarks.rounds"
    tiny.finish(tiny.spawn(program, str(directory), str(rounds), json.dumps(runs)))


def main(arguments: list[str]) -> None:
    """In the process of the runs."""
    directory, rounds, runs = Path(arguments[0]), int(arguments[1]), json.loads(arguments[2])
    for number in range(rounds + 1):
        for name, changes in runs.items():
            tiny.run(directory / f"{name}-{number}", **changes)
    for name in runs:
        parts = [directory / f"{name}-{number}" for number in range(1, rounds + 1)]
        for log in LOGS:
            if (parts[0] / log).exists():
                rows = zip(*(jsonl.read(part / log) for part in parts), strict=True)
                lines = [json.dumps(median(list(same))) + "\n" for same in rows]
                (parts[0] / log).write_text("".join(lines))
        parts[0].rename(directory / name)
        for part in [directory / f"{name}-0", *parts[1:]]:
            shutil.rmtree(part)


def median(rows: list[Row]) -> Row:
    """The first row, with the median of each time."""
    times = [key for key in rows[0] if key == "seconds" or key.startswith("time/")]
    return rows[0] | {key: statistics.median(row[key] for row in rows) for key in times}


if __name__ == "__main__":
    main(sys.argv[1:])
