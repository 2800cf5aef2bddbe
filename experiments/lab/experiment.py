"""The command line of the experiments of experiments/runs that train policies of the lab."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.lab.effect import BLOCK

Found = dict[str, Any]
"""Figures by name, or by names within names: lists with an entry a seed."""


def main(
    description: str,
    run: Callable[[tuple[int, ...], int], Found],
    report: Callable[[Found], str],
    *,
    seeds: int,
    steps: int,
) -> None:
    """Measure if there are no results yet, and print the tables.

    Args:
      description: of the command, in its first line.
      run: (seeds, steps of the RL) -> figures, as JSON has them.
      report: the tables of figures.
      seeds: how many there are, from 0, where none are told.
      steps: where not told.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(seeds)))
    parser.add_argument("--steps", type=int, default=steps)
    given = parser.parse_args()
    if not given.results.exists():
        began = time.process_time()
        found = run(tuple(given.seeds), given.steps)
        given.results.write_text(json.dumps(found, indent=1))
        print(f"{(time.process_time() - began) / 60:.1f} minutes of processor time")
    print(report(json.loads(given.results.read_text())))


def in_blocks(
    block: Callable[[tuple[int, ...], int], Found], seeds: tuple[int, ...], steps: int
) -> Found:
    """The figures of all seeds, measured block by block by the same compiled programs."""
    parts = [block(seeds[i : i + BLOCK], steps) for i in range(0, len(seeds), BLOCK)]
    found = parts[0]
    for part in parts[1:]:
        found = joined(found, part)
    return found


def joined(one: Any, two: Any) -> Any:
    """The seeds of both."""
    if isinstance(one, dict):
        return {name: joined(value, two[name]) for name, value in one.items()}
    return one + two
