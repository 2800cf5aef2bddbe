"""Views of recorded figures: at equal budgets, and of which machine they are."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from experiments.lab import statistics
from experiments.lab.effect import Effect

_CPU = Path("/proc/cpuinfo")


Budget = Literal["tokens", "updates"]


def at_equal(
    budget: Budget, effect: Effect, mine: list[dict], other: list[dict], level: float
) -> dict[str, Any] | None:
    """The comparison of two arms at equal tokens or updates; None where the statistic has no curve.

    Each seed of each arm is read off its own curve between marks, at the budget of the arm that
    took less; for an area, at as many places up to there as there are marks.
    """
    curves = [_curves(parts, effect.statistic, budget) for parts in (mine, other)]
    if any(curve is None for curve in curves):
        return None
    least = np.minimum(*(spent[-1] for spent, _ in curves))
    shares = np.linspace(0, 1, len(curves[0][0]))[1:] if effect.over == "area" else np.ones(1)
    read = [
        np.array([
            np.mean(np.interp(shares * most, own, values))
            for most, own, values in zip(least, spent.T, figures.T, strict=True)
        ])
        for spent, figures in curves
    ]  # fmt: skip
    return dataclasses.asdict(
        statistics.paired(read[0] - read[1], minimum=effect.minimum, level=level)
    )


def _curves(parts: list[dict], name: str, budget: Budget) -> tuple[np.ndarray, np.ndarray] | None:
    """What was spent and a figure [marks + 1, S], the start included."""
    if any(name not in part["before"] or name not in part["curves"] for part in parts):
        return None
    figures = [np.concatenate([[part["before"][name]], part["curves"][name]]) for part in parts]
    spent = [np.array(part["curves"][budget], float) for part in parts]
    spent = [np.concatenate([np.zeros((1, each.shape[1])), each]) for each in spent]
    return np.concatenate(spent, axis=1), np.concatenate(figures, axis=1)


def machine() -> str:
    """The type of machine and of its programs, on which figures are the same to the last digit."""
    names = {
        line.partition(":")[2].strip()
        for line in _CPU.read_text().split("\n")
        if line.startswith("model name")
    } if _CPU.exists() else set()  # fmt: skip
    return f"{platform.machine()}, {' '.join(sorted(names))}, jax {jax.__version__}"
