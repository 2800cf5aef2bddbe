"""The league of base algorithms: each against its family's reference, over the tasks of all plans.

The figures are those that the baselines of all plans were chosen by: means of six development
seeds, each algorithm tuned on them over the same grid. Nothing here is a test of a method.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.effects import table
from experiments.lab import statistics

REFERENCES = {
    "objectives": "GRPO",
    "off-policy": "truncated importance sampling",
    "gold solutions": "SFT",
    "data selection": "uniform",
    "preferences": "GRPO",
    "critics": "GRPO",
    "priming": "GRPO",
    "agents": "GRPO",
}
"""Family -> the base algorithm that the others are compared with."""
LARGER = ("DAPO", "dynamic sampling")
"""Algorithms that take more samples a step than their reference."""


class Standing(NamedTuple):
    """One algorithm against its family's reference."""

    family: str
    algorithm: str
    differences: tuple[float, ...]
    """Of the pass rates, one a task."""

    @property
    def mean(self) -> float:
        """Over tasks."""
        return float(np.mean(self.differences))

    @property
    def median(self) -> float:
        """Over tasks."""
        return float(np.median(self.differences))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% t interval of the mean over tasks."""
        got = statistics.paired(np.array(self.differences), minimum=1.0)
        return got.low, got.high

    def count(self, low: float, high: float) -> int:
        """The tasks whose difference lies between two numbers, the ends included."""
        return sum(low <= each <= high for each in self.differences)


def standings() -> list[Standing]:
    """Every base algorithm but the references, by family; tasks that several plans share, once."""
    seen = dict[tuple[str, str], dict[str, float]]()
    for plan in plans():
        reference = f"baseline: {REFERENCES.get(plan['family'])}"
        for planned in plan["tasks"].values():
            chosen, described = planned["arms"], planned["described"]
            if reference not in chosen or not planned["statistic"].startswith("pass@1"):
                continue
            for label in chosen.keys() - {reference}:
                if not label.startswith("baseline: "):
                    continue
                key = json.dumps([planned["task"], planned["statistic"], plan["over"],
                                  described[reference], described[label]])  # fmt: skip
                pair = (plan["family"], label.removeprefix("baseline: "))
                difference = chosen[label]["score"] - chosen[reference]["score"]
                seen.setdefault(pair, {})[key] = difference
    order = list(REFERENCES)
    return sorted(
        (Standing(*pair, tuple(each.values())) for pair, each in seen.items() if len(each) > 1),
        key=lambda s: (order.index(s.family), -s.mean),
    )


def plans() -> list[dict[str, Any]]:
    """Every plan, by name."""
    return [json.loads(p.read_text()) for p in sorted(table.RESULTS.glob("*.plan.json"))]


def markdown(rows: Sequence[Standing]) -> list[str]:
    """The league as a table; lines."""
    lines = [
        "| family | algorithm less reference | tasks | mean over tasks [95%] | better in |",
        "|" + "---|" * 5,
    ]
    for row in rows:
        low, high = row.interval
        budget = " (1.7 times the samples)" * (row.algorithm in LARGER)
        lines.append(
            f"| {row.family} | {row.algorithm} less {REFERENCES[row.family]}{budget} "
            f"| {len(row.differences)} | {row.mean:+.3f} [{low:+.3f}, {high:+.3f}] "
            f"| {sum(each > 0 for each in row.differences)} |"
        )
    return lines
