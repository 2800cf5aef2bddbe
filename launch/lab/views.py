"""Views of recorded figures: at equal tokens, and of which machine they are."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.launch.lab import statistics
from jaxrl.launch.lab.effect import Effect

_CPU = Path("/proc/cpuinfo")


def at_tokens(
    effect: Effect, mine: list[dict], other: list[dict], level: float
) -> dict[str, Any] | None:
    """The comparison of two arms at equal tokens; None where the statistic has no curve.

    Each seed of each arm is read off its own curve between marks, at the tokens of the arm that
    took fewer; for an area, at as many places up to there as there are marks.
    """
    curves = [_curves(parts, effect.statistic) for parts in (mine, other)]
    if any(curve is None for curve in curves):
        return None
    budget = np.minimum(*(tokens[-1] for tokens, _ in curves))
    shares = np.linspace(0, 1, len(curves[0][0]))[1:] if effect.over == "area" else np.ones(1)
    read = [
        np.array([
            np.mean(np.interp(shares * least, own, values))
            for least, own, values in zip(budget, tokens.T, figures.T, strict=True)
        ])
        for tokens, figures in curves
    ]  # fmt: skip
    return dataclasses.asdict(
        statistics.paired(read[0] - read[1], minimum=effect.minimum, level=level)
    )


def _curves(parts: list[dict], name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Tokens and a figure [marks + 1, S], the start included."""
    if any(name not in part["before"] or name not in part["curves"] for part in parts):
        return None
    figures = [np.concatenate([[part["before"][name]], part["curves"][name]]) for part in parts]
    tokens = [np.array(part["curves"]["tokens"], float) for part in parts]
    tokens = [np.concatenate([np.zeros((1, t.shape[1])), t]) for t in tokens]
    return np.concatenate(tokens, axis=1), np.concatenate(figures, axis=1)


def machine() -> str:
    """The type of machine and of its programs, on which figures are the same to the last digit."""
    names = {
        line.partition(":")[2].strip()
        for line in _CPU.read_text().split("\n")
        if line.startswith("model name")
    } if _CPU.exists() else set()  # fmt: skip
    return f"{platform.machine()}, {' '.join(sorted(names))}, jax {jax.__version__}"
