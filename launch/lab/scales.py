"""How effects in the lab compare with those of the same methods on a real model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from jaxrl.launch.lab import statistics

FEWEST = 4
"""Methods that a rank correlation takes: its interval divides by their number less 3."""


class Difference(NamedTuple):
    """Means of independent runs compared."""

    effect: float
    low: float | None
    high: float | None
    """Welch's 95% interval; None where an arm has a single run, which shows no spread."""


class Correlation(NamedTuple):
    """Spearman's, with its 95% interval."""

    rho: float
    low: float
    high: float
    methods: int


def difference(mine: Sequence[float], other: Sequence[float]) -> Difference:
    """A method's runs against the baseline's; one or more of each."""
    if min(len(mine), len(other)) < 2:
        return Difference(float(np.mean(mine) - np.mean(other)), None, None)
    return Difference(*statistics.unpaired(np.asarray(mine), np.asarray(other)))


def correlation(lab: Mapping[str, float], real: Mapping[str, float]) -> Correlation | None:
    """The rank correlation of effects, method -> effect, over the methods that both have.

    The interval is that of Fisher's transform with the error of Bonett & Wright (2000). None where
    there are fewer than `FEWEST` methods, or where all effects at one scale are equal.
    """
    both = sorted({*lab} & {*real})
    pair = [[scale[name] for name in both] for scale in (lab, real)]
    if len(both) < FEWEST or any(len(set(values)) == 1 for values in pair):
        return None
    rho = float(stats.spearmanr(*pair).statistic)
    error = np.sqrt((1 + rho**2 / 2) / (len(both) - 3))
    edges = np.tanh(np.arctanh(np.clip(rho, -0.9999, 0.9999)) + np.array([-1.96, 1.96]) * error)
    return Correlation(rho, float(edges[0]), float(edges[1]), len(both))
