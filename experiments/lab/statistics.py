"""What differences between two arms say: intervals, tests, equivalence, power and looks.

The rules are those of `PROTOCOL.md`. Arrays are NumPy, one number a seed.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats

LEVEL = 0.05
"""Two-sided level of a family's tests, and one-sided level of the equivalence test."""
POWER = 0.8
FEWEST, MOST = 12, 48
"""Seeds of a measurement."""
LARGE, FEWEST_IN_LARGE = 60, 18
"""Rows of a large family, and the least seeds there.

12 seeds have 4096 flips of signs, so that no p value of theirs is below 2/4096. Times the rows of a
large family that can exceed `LEVEL`, whatever the effect.
"""
QUIETEST = 1.0
"""Least deviation that a plan expects, in minimum effects. Pilots of six seeds are often quieter
than the measurement."""
EXHAUSTIVE = 14
"""Up to this number of seeds, all flips of signs are counted."""
FLIPS = 10_000
"""Random flips above that."""
Status = Literal["effect", "equivalent", "undecided", "contrary"]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two arms, as far as a look shows."""

    effect: float
    """Mean difference, method less other arm."""
    low: float
    high: float
    """Its interval at 1 - level."""
    p_t: float
    p_flip: float
    """Two-sided p values against 0, by the t test and by flipping signs."""
    p_equivalent: float
    """Of the two one-sided tests against plus and minus the minimum effect."""
    seeds: int
    level: float

    @property
    def p(self) -> float:
        """The larger p value, in units of `LEVEL`: below `LEVEL` means below the look's level."""
        return min(1.0, max(self.p_t, self.p_flip) * LEVEL / self.level)

    @property
    def p_same(self) -> float:
        """The p value of equivalence, in the same units."""
        return min(1.0, self.p_equivalent * LEVEL / self.level)

    @property
    def deviation(self) -> float:
        """Standard deviation of the differences, from the interval."""
        edge = float(stats.t.ppf(1 - self.level / 2, self.seeds - 1))
        return (self.high - self.low) / 2 / edge * math.sqrt(self.seeds)


def paired(differences: np.ndarray, *, minimum: float, level: float = LEVEL) -> Comparison:
    """Compare two arms by their differences [S] on the same seeds.

    Args:
      differences: method less other arm; two or more.
      minimum: effect of interest, above 0, in the statistic's unit.
      level: of this look.
    """
    size = len(differences)
    if size < 2:
        raise ValueError(f"{size} seeds: 2 or more are needed for an interval")
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(size)
    half = float(stats.t.ppf(1 - level / 2, size - 1)) * error
    return Comparison(
        effect=mean,
        low=mean - half,
        high=mean + half,
        p_t=min(1.0, 2 * _tail(abs(mean), error, size - 1)),
        p_flip=flip_signs(differences),
        p_equivalent=_tail(minimum - abs(mean), error, size - 1),
        seeds=size,
        level=level,
    )


def interval(differences: np.ndarray) -> str:
    """The mean of differences [S] with its 95% t interval, for a table."""
    got = paired(differences, minimum=1.0)
    return f"{got.effect:+.3f} [{got.low:+.3f}, {got.high:+.3f}]"


def unpaired(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> tuple[float, float, float]:
    """Difference of means of two independent samples and its Welch interval at 1 - level."""
    each = [float(np.var(x, ddof=1)) / len(x) for x in (a, b)]
    total = sum(each)
    mean = float(np.mean(a) - np.mean(b))
    if total == 0:
        return mean, mean, mean
    parts = sum(v**2 / (len(x) - 1) for v, x in zip(each, (a, b), strict=True))
    half = float(stats.t.ppf(1 - level / 2, total**2 / parts)) * math.sqrt(total)
    return mean, mean - half, mean + half


def flip_signs(differences: np.ndarray) -> float:
    """Two-sided p value of the permutation test of paired arms.

    Where neither arm is better, each difference might as well have had the other sign.
    """
    size, seen = len(differences), abs(float(np.mean(differences)))
    if size <= EXHAUSTIVE:
        extreme = np.abs(_all_signs(size) @ differences) / size >= seen - 1e-12
        return float(extreme.mean())
    extreme = np.abs(_some_signs(size) @ differences) / size >= seen - 1e-12
    return float((extreme.sum() + 1) / (FLIPS + 1))


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for being a family (Holm 1979), in the order given."""
    order, worst = np.argsort(p), 0.0
    out = [0.0] * len(p)
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        out[i] = worst
    return out


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """p values corrected for the share of false discoveries (Benjamini & Hochberg 1995).

    In the order given; a set of tests in which all below 0.05 are called has at most 5% of false
    ones among them on average.
    """
    order, least = np.argsort(p)[::-1], 1.0
    out = [0.0] * len(p)
    for rank, i in enumerate(order):
        least = min(least, p[i] * len(p) / (len(p) - rank))
        out[i] = least
    return out


def status(
    comparison: Comparison,
    corrected: float,
    *,
    better: str,
    equivalent: float | None = None,
    guard: Comparison | None = None,
    minimum: float = 0.0,
) -> Status:
    """What a comparison shows, see `PROTOCOL.md`.

    Args:
      comparison: of the statistic.
      corrected: its `p` after the correction.
      better: `higher` or `lower`.
      equivalent: its `p_same` after the correction; None: as it is.
      guard: the accuracy of the same arms, where the statistic is another.
      minimum: difference of accuracy from which arms cannot be compared by the statistic.
    """
    equivalent = comparison.p_same if equivalent is None else equivalent
    if comparison.p_same < LEVEL:  # too small to matter, if only in itself, is no effect
        found = "equivalent" if equivalent < LEVEL else "undecided"
    elif corrected >= LEVEL:
        found = "undecided"
    else:
        found = "effect" if (comparison.effect > 0) == (better == "higher") else "contrary"
    return found if guard is None or _matched(found, guard, minimum) else "undecided"


def _matched(found: Status, guard: Comparison, minimum: float) -> bool:
    """Whether no arm that a status speaks for has paid with accuracy."""
    method_kept, other_kept = guard.low > -minimum, guard.high < minimum
    return {
        "effect": method_kept,
        "contrary": other_kept,
        "equivalent": method_kept and other_kept,
        "undecided": True,
    }[found]


def power(deviation: float, minimum: float, seeds: int, level: float = LEVEL) -> float:
    """Power of the paired t test for an effect of `minimum`."""
    if deviation == 0:
        return 1.0
    shift, edge = minimum * math.sqrt(seeds) / deviation, stats.t.ppf(1 - level / 2, seeds - 1)
    upper = stats.nct.sf(edge, seeds - 1, shift)
    lower = stats.nct.cdf(-edge, seeds - 1, shift)
    # At large shifts SciPy may give no number, where the one tail is 1 and the other 0.
    return float(np.nan_to_num(upper, nan=1.0) + np.nan_to_num(lower, nan=0.0))


def deviation_above(pilot: np.ndarray) -> float:
    """Upper end of the one-sided 80% interval of the deviation of a pilot's differences."""
    freedom = len(pilot) - 1
    return float(np.std(pilot, ddof=1) * math.sqrt(freedom / stats.chi2.ppf(0.2, freedom)))


def deviation_expected(pilot: np.ndarray, minimum: float) -> float:
    """What a plan takes the deviation for: that of `deviation_above`, but at least `QUIETEST`.

    Args:
      pilot: differences of the arms on development seeds.
      minimum: effect of interest.
    """
    return max(deviation_above(pilot), QUIETEST * minimum)


def seeds_needed(pilot: np.ndarray, minimum: float, rows: int = 1) -> int:
    """The least number of seeds with `POWER` for an effect of `minimum`, `FEWEST` to `MOST`.

    Args:
      pilot: differences of the arms on development seeds.
      minimum: effect of interest.
      rows: of the family; a large one takes `FEWEST_IN_LARGE` or more.
    """
    deviation = deviation_expected(pilot, minimum)
    fewest = FEWEST_IN_LARGE if rows > LARGE else FEWEST
    enough = bisect.bisect_left(
        range(fewest, MOST), POWER, key=lambda seeds: power(deviation, minimum, seeds)
    )
    return fewest + enough


def levels(looks: Sequence[int], level: float = LEVEL) -> list[float]:
    """The level of each look at the data, which sum to the whole.

    The level spent by a share `t` of the seeds is `2 (1 - Phi(z / sqrt(t)))` (Lan & DeMets 1983,
    after O'Brien & Fleming), `z` the normal quantile of the whole level.

    Args:
      looks: seeds of each, rising.
      level: of all together.
    """
    if not looks or list(looks) != sorted(set(looks)):
        raise ValueError(f"looks={list(looks)}: give one or more rising numbers of seeds")
    edge = stats.norm.ppf(1 - level / 2)
    spent = [2 * float(stats.norm.sf(edge / math.sqrt(n / looks[-1]))) for n in looks]
    return [b - a for a, b in zip([0.0, *spent], spent, strict=False)]


@functools.cache
def _all_signs(size: int) -> np.ndarray:
    """[2^size, size] float64, every combination of 1 and -1."""
    places = np.arange(2**size)[:, None] >> np.arange(size)
    return 1.0 - 2.0 * (places & 1)


@functools.lru_cache(maxsize=8)
def _some_signs(size: int) -> np.ndarray:
    """[FLIPS, size] float64 of 1 and -1."""
    return np.random.default_rng(0).integers(0, 2, (FLIPS, size)) * 2.0 - 1.0


def _tail(distance: float, error: float, freedom: int) -> float:
    """Chance that Student's t exceeds distance / error."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, freedom))
