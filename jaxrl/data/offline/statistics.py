"""Numbers about offline data: normalised scores, and how good and how varied a data set is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxrl.data.offline.transitions import Transitions, returns


class Bounds(NamedTuple):
    """Returns that a score is relative to."""

    low: float
    """Mean return of the random policy, or the least return."""
    high: float
    """Mean return of the expert."""


D4RL = {
    "halfcheetah": Bounds(-280.178953, 12135.0),
    "hopper": Bounds(-20.272305, 3234.3),
    "walker2d": Bounds(1.629008, 4592.3),
    "ant": Bounds(-325.6, 3879.7),
}
"""The bounds of Fu et al. 2020 (D4RL) for the locomotion tasks."""


def normalised_score(value: np.ndarray | float, bounds: Bounds) -> np.ndarray | float:
    """D4RL's score: 0 for the random policy, 100 for the expert.

    Formula: `100 (R - R_random) / (R_expert - R_random)`

    Raises:
      ValueError: bounds that leave no room.
    """
    if bounds.high <= bounds.low:
        raise ValueError(f"bounds {tuple(bounds)}: the expert must be above the random policy")
    return 100.0 * (value - bounds.low) / (bounds.high - bounds.low)


def centred_score(value: float, bounds: Bounds, average: float) -> float:
    """LMRL-Gym's score: 0 for the least return, 50 for the data's mean, 100 for the best.

    It is linear between these. In the authors' code the least return is the worst that a game can
    end with, and the best the mean of optimal play.

    Formula: `50 (R - low) / (average - low)` below the average, else
    `50 + 50 (R - average) / (high - average)`
    Paper: Abdulhai et al. 2023, "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with
    Language Models"

    Args:
      value: R, a mean return.
      bounds: the least and the best return.
      average: mean return of the data.

    Raises:
      ValueError: the average is not between the bounds.
    """
    if not bounds.low < average < bounds.high:
        raise ValueError(
            f"average={average}, bounds {tuple(bounds)}: the mean return of the data must be "
            "between the least and the best return"
        )
    if value < average:
        return 50.0 * (value - bounds.low) / (average - bounds.low)
    return 50.0 + 50.0 * (value - average) / (bounds.high - average)


def trajectory_quality(data: Transitions, bounds: Bounds) -> float:
    """TQ: how good the behaviour was (Schweighofer et al. 2022, "A Dataset Perspective").

    Formula: `(mean return - low) / (high - low)`
    """
    return float(normalised_score(returns(data).mean(), bounds)) / 100.0


def coverage(data: Transitions, reference: Transitions, *, bins: int = 20) -> float:
    """SACo: distinct state-action pairs relative to those of a reference, usually a replay.

    Continuous values are counted by the bin they fall into, in the range of the reference
    (Schweighofer et al. 2022 count discretised states likewise).

    Formula: `|unique (s, a) of data| / |unique (s, a) of reference|`
    """
    wide = [_pairs(d) for d in (data, reference)]
    low, high = wide[1].min(axis=0), wide[1].max(axis=0)
    width = np.maximum(high - low, 1e-8) / bins
    cells = [np.clip((x - low) // width, -1, bins).astype(np.int16) for x in wide]
    counts = [len(np.unique(c, axis=0)) for c in cells]
    return counts[0] / counts[1]


def headroom(data: Transitions) -> float:
    """Positive-sided variance of the returns: what better-than-average trajectories offer.

    Formula: `E[max(G - E[G], 0)^2]`
    Paper: Hong et al. 2023, "Harnessing Mixed Offline RL Datasets via Trajectory Weighting"
    """
    g = returns(data)
    return float(np.mean(np.maximum(g - g.mean(), 0.0) ** 2))


def _pairs(data: Transitions) -> np.ndarray:
    actions = np.asarray(data.actions, np.float32).reshape(len(data.rewards), -1)
    return np.concatenate([np.asarray(data.observations, np.float32), actions], axis=1)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean of the middle half of all entries of the last axis (Agarwal et al. 2021, rliable).

    A quarter of the entries, rounded down, is left out at each end.

    Args:
      scores: [..., N].
    """
    count = scores.shape[-1]
    edge = count // 4
    return np.sort(scores, axis=-1)[..., edge : count - edge].mean(axis=-1)


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """How far scores are below a target; what is above it counts as the target (rliable).

    Formula: `target - mean(min(score, target))` over the last axis, [...].
    """
    return target - np.minimum(scores, target).mean(axis=-1)


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of scores of the last axis that are above each threshold (rliable).

    Args:
      scores: [..., N].
      thresholds: [T].

    Returns:
      [..., T].
    """
    return (scores[..., None, :] > np.asarray(thresholds)[:, None]).mean(axis=-1)


def bootstrap_interval(
    scores: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray] = interquartile_mean,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Any, Any]:
    """The stratified percentile bootstrap's interval of a statistic of all scores (rliable).

    Args:
      scores: [N] of N runs of one task, or [N, M] of M tasks; the runs of a task are drawn anew
        with replacement, each task for itself.
      statistic: resampled scores [R, N M] -> values [R, ...].
      resamples: R.
      level: share of the values between both ends.
      seed: of the draws.

    Returns:
      Both ends, [...].
    """
    runs = np.asarray(scores).reshape(len(scores), -1)
    rng = np.random.default_rng(seed)
    index = rng.integers(0, len(runs), (resamples, *runs.shape))
    samples = runs[index, np.arange(runs.shape[1])].reshape(resamples, -1)
    edge = (1.0 - level) / 2.0
    low, high = np.quantile(statistic(samples), [edge, 1.0 - edge], axis=0)
    return low, high
