"""How effects in the lab compare with those of the same methods on a real model."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.lab import statistics

FEWEST = 4
"""Methods that a rank correlation takes. With 4, the least p value is 2 / 24."""
_EXACT = 8
"""Up to this number of methods, all orders are counted."""
_ORDERS = 100_000
"""Random orders above that."""
_CORRELATIONS = np.linspace(-1, 1, 101)
"""Correlations of a population that an interval may begin and end at."""
_DRAWS = 4000
"""Simulated samples of each."""


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
    p: float
    """Two-sided, of the permutation test."""
    methods: int


class Expected(NamedTuple):
    """Spearman's correlation as it can be expected."""

    mean: float
    low: float
    high: float
    """Between which it is in 90% of cases."""


def difference(mine: Sequence[float], other: Sequence[float]) -> Difference:
    """A method's runs against the baseline's; one or more of each."""
    if min(len(mine), len(other)) < 2:
        return Difference(float(np.mean(mine) - np.mean(other)), None, None)
    return Difference(*statistics.unpaired(np.asarray(mine), np.asarray(other)))


def correlation(lab: Mapping[str, float], real: Mapping[str, float]) -> Correlation | None:
    """The rank correlation of effects, method -> effect, over the methods that both have.

    None where there are fewer than `FEWEST` methods, or where all effects at one scale are equal.
    """
    both = sorted({*lab} & {*real})
    pair = [[scale[name] for name in both] for scale in (lab, real)]
    if len(both) < FEWEST or any(len(set(values)) == 1 for values in pair):
        return None
    ranks = stats.rankdata(pair, axis=1)
    rho = float(np.corrcoef(ranks)[0, 1])
    return Correlation(rho, *interval(rho, len(both)), _permuted(*ranks), len(both))


def interval(rho: float, methods: int) -> tuple[float, float]:
    """The 95% interval of a rank correlation.

    It has the correlations of normal populations whose samples are at least as high as `rho` in
    more than 2.5% of cases, and at least as low.

    Args:
      rho: of a sample.
      methods: its size.
    """
    sampled = _sampled(methods)
    above, below = (sampled >= rho - 1e-9).mean(axis=1), (sampled <= rho + 1e-9).mean(axis=1)
    inside = _CORRELATIONS[(above > 0.025) & (below > 0.025)]
    return float(inside[0]), float(inside[-1])


def expected(lab: Sequence[float], deviation: float, runs: int) -> Expected:
    """The rank correlation where the true effects on the real model are those of the lab.

    The noise of the baseline's runs is the same for all methods, so it changes no rank.

    Args:
      lab: effects of the methods.
      deviation: standard deviation of runs of one method.
      runs: of each method.
    """
    noise = np.random.default_rng(0).normal(0, deviation / math.sqrt(runs), (_DRAWS, len(lab)))
    ranks = stats.zscore(stats.rankdata(np.asarray(lab) + noise, axis=1), axis=1)
    found = ranks @ stats.zscore(stats.rankdata(lab)) / len(lab)
    return Expected(float(found.mean()), *map(float, np.quantile(found, (0.05, 0.95))))


def pooled(arms: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of runs within arms; None where no arm has two runs."""
    arms = [arm for arm in arms if len(arm) > 1]
    if not arms:
        return None
    squares = sum(float(np.var(arm)) * len(arm) for arm in arms)
    return math.sqrt(squares / sum(len(arm) - 1 for arm in arms))


def _permuted(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p value of the permutation test of ranks [n]."""
    centre = a.sum() * b.sum() / len(a)
    seen = abs(a @ b - centre) - 1e-9
    extreme = np.abs(b[_orders(len(a))] @ a - centre) >= seen
    if len(a) <= _EXACT:
        return float(extreme.mean())
    return float((extreme.sum() + 1) / (_ORDERS + 1))


@functools.lru_cache(maxsize=2)
def _orders(size: int) -> np.ndarray:
    """[orders, size], all or `_ORDERS` of them."""
    if size <= _EXACT:
        return np.array(list(itertools.permutations(range(size))))
    return np.random.default_rng(0).permuted(np.tile(np.arange(size), (_ORDERS, 1)), axis=1)


@functools.lru_cache(maxsize=2)
def _sampled(size: int) -> np.ndarray:
    """Spearman's correlations of samples of normal populations, [_CORRELATIONS, _DRAWS]."""
    rng = np.random.default_rng(0)
    first = np.sort(rng.normal(size=(_DRAWS, size)), axis=1)
    second, out = rng.normal(size=(_DRAWS, size)), []
    for pearson in 2 * np.sin(np.pi / 6 * _CORRELATIONS):
        drawn = pearson * first + math.sqrt(max(0.0, 1 - pearson**2)) * second
        squares = ((np.argsort(drawn, axis=1) - np.arange(size)) ** 2).sum(axis=1)
        out.append(1 - 6 * squares / (size * (size**2 - 1)))
    return np.array(out)
