"""Rewards of a submission by the thresholds that it reaches, as SandMLE has them (2026)."""

from __future__ import annotations

from typing import NamedTuple


class Thresholds(NamedTuple):
    """Scores of a leaderboard, from the best."""

    gold: float
    silver: float
    bronze: float
    median: float


TIERS = {"gold": 0.7, "silver": 0.6, "bronze": 0.5, "median": 0.1}
"""What each adds; the highest that is reached counts."""


def tier(score: float, thresholds: Thresholds, *, lower_better: bool) -> str:
    """The highest tier that a score reaches: `gold`, `silver`, `bronze`, `median`, or empty."""
    for name in TIERS:
        threshold = getattr(thresholds, name)
        if score <= threshold if lower_better else score >= threshold:
            return name
    return ""


def dense(score: float | None, thresholds: Thresholds, *, form: float, lower_better: bool) -> float:
    """`0.1 form + 0.2 [there is a score] + what its tier adds`; from 0 to 1.

    Args:
      score: of a submission that runs; None for one that does not.
      thresholds: of its task.
      form: share of the turns in the right form.
      lower_better: whether a low score is a good one.
    """
    reached = "" if score is None else tier(score, thresholds, lower_better=lower_better)
    return round(0.1 * form + 0.2 * (score is not None) + TIERS.get(reached, 0.0), 6)


def sparse(
    score: float | None, thresholds: Thresholds, *, form: float, lower_better: bool
) -> float:
    """The ablation of `dense`: `0.1 form + 0.9 [gold]`."""
    reached = "" if score is None else tier(score, thresholds, lower_better=lower_better)
    return round(0.1 * form + 0.9 * (reached == "gold"), 6)
