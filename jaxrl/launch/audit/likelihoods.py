"""Checks of recorded log-probabilities against those of the model that sampled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl.launch.audit import ModelCall, Trace
from jaxrl.launch.audit.findings import Finding


class Scores(NamedTuple):
    """A model's log-probabilities of the tokens of one turn, nats."""

    logp: np.ndarray
    """[T], at the temperature that was asked for."""
    logp_at: Mapping[float, np.ndarray] = {}
    """[T] at each of some other temperatures."""
    log_mass: Mapping[str, np.ndarray] = {}
    """[T] for each of some cuts, such as "top-p 0.9": the log of the probability that the tokens
    have which the cut leaves; NaN where the cut would have left out the token that was sampled."""


def mismatches(
    traces: Sequence[Trace], scores: Mapping[tuple[int, int], Scores], tolerance: float
) -> Iterator[Finding]:
    """Recorded log-probabilities that are not the model's.

    Args:
      traces: the rollouts.
      scores: of turn j of trace i at `(i, j)`, where the model was asked.
      tolerance: the largest mean of absolute differences of a row that is not reported, nats.
    """
    for i, trace in enumerate(traces):
        gaps = [
            (turn, scores[i, j], gap)
            for j, turn in enumerate(trace.turns)
            if (i, j) in scores and (gap := gap_of(turn, scores[i, j].logp)) is not None
        ]
        all_gaps = np.concatenate([gap for _, _, gap in gaps]) if gaps else np.zeros(0)
        if not all_gaps.size or np.abs(all_gaps).mean() <= tolerance:
            continue
        yield _mismatch(trace, gaps, all_gaps, tolerance)


def _mismatch(
    trace: Trace,
    gaps: Sequence[tuple[ModelCall, Scores, np.ndarray]],
    all_gaps: np.ndarray,
    tolerance: float,
) -> Finding:
    mean = float(np.abs(all_gaps).mean())
    outside = np.mean((np.exp(-all_gaps) < 0.9) | (np.exp(-all_gaps) > 1.1))
    ratios = f"{outside:.0%} of the ratios are outside 0.9 to 1.1"
    for temperature in gaps[0][1].logp_at:
        tempered = [gap_of(turn, score.logp_at[temperature]) for turn, score, _ in gaps]
        values = np.concatenate([gap for gap in tempered if gap is not None])
        if np.abs(values).mean() <= tolerance:
            return Finding(
                "support_bias", trace.where, mean,
                f"the recorded log-probabilities are of temperature {temperature:g}; {ratios}",
            )  # fmt: skip
    if all_gaps.min() > -tolerance and np.mean(all_gaps > tolerance) > 0.05:
        return Finding(
            "support_bias", trace.where, mean,
            f"the recorded log-probabilities are above the model's by up to {all_gaps.max():.3g} "
            f"nats and never below: they are over a part of the vocabulary, as top-p "
            f"{math.exp(-all_gaps.max()):.2f} or top-k leaves it; {ratios}",
        )  # fmt: skip
    return Finding(
        "logp_mismatch", trace.where, mean,
        f"mean |recorded - model| is {mean:.3g} nats, the largest {np.abs(all_gaps).max():.3g}, "
        f"{_growth(all_gaps)}; {ratios}",
    )  # fmt: skip


_SURE = 20.0
"""Nats: samples of the whole vocabulary would all be within a cut once in e^20."""


def cuts(
    traces: Sequence[Trace], scores: Mapping[tuple[int, int], Scores], tolerance: float
) -> Iterator[Finding]:
    """A cut of the vocabulary that was sampled with, and that recorded log-probabilities leave out.

    Samples of the whole vocabulary are all within a cut with the product of the probabilities that
    it leaves at each token. Where that is below e^-20, the cut was there. Rollouts whose recorded
    log-probabilities are over the cut already are left out, as `mismatches` has them.
    """
    matching = [
        (traces[i], score)
        for (i, j), score in scores.items()
        if (gap := gap_of(traces[i].turns[j], score.logp)) is not None
        and np.abs(gap).mean() <= tolerance
    ]
    evidence: dict[str, float] = {}
    for name in matching[0][1].log_mass if matching else ():
        log_mass = np.concatenate([score.log_mass[name] for _, score in matching])
        if not np.isnan(log_mass).any():
            evidence[name] = -float(log_mass.sum())
    if not evidence or max(evidence.values()) < _SURE:
        return
    name = max(evidence, key=lambda cut: evidence[cut])
    count = sum(len(score.logp) for _, score in matching)
    yield Finding(
        "support_bias", matching[0][0].where, evidence[name] / count,
        f"all {count} sampled tokens of {len(matching)} turns are within {name}, which samples of "
        f"the whole vocabulary are once in e^{evidence[name]:.0f}, and the recorded "
        "log-probabilities are over the whole vocabulary: a ratio of policies is then not that of "
        "what was sampled",
    )  # fmt: skip


def _growth(gaps: np.ndarray) -> str:
    """How differences of a row go from its first quarter to its last."""
    if len(gaps) < 8:
        return "too few tokens to tell how it grows"
    quarter = len(gaps) // 4
    first, last = np.abs(gaps[:quarter]).mean(), np.abs(gaps[-quarter:]).mean()
    return f"{first:.3g} in the first quarter of the tokens and {last:.3g} in the last"


def gap_of(turn: ModelCall, logp: np.ndarray) -> np.ndarray | None:
    """Recorded less computed log-probabilities of the trained tokens that have one; None: none."""
    if turn.logp is None:
        return None
    comparable = np.isfinite(turn.logp) & np.isfinite(logp)
    if turn.trained is not None:
        comparable &= turn.trained
    return (turn.logp - logp)[comparable] if comparable.any() else None


def by_depth(
    traces: Sequence[Trace], scores: Mapping[tuple[int, int], Scores], parts: int = 8
) -> list[tuple[int, int, float]]:
    """Mean absolute differences of log-probabilities by the position in the whole sequence.

    Returns:
      The first and the last position of each part, which have equally many tokens, and its mean.
    """
    depths, gaps = [], []
    for (i, j), score in scores.items():
        turn = traces[i].turns[j]
        if turn.logp is None:
            continue
        comparable = np.isfinite(turn.logp) & np.isfinite(score.logp)
        if turn.trained is not None:
            comparable &= turn.trained
        depths.append(len(turn.prompt) + np.flatnonzero(comparable))
        gaps.append(np.abs(turn.logp - score.logp)[comparable])
    if not gaps or not (depth := np.concatenate(depths)).size:
        return []
    order = np.argsort(depth, kind="stable")
    gap = np.concatenate(gaps)
    return [
        (int(depth[part[0]]), int(depth[part[-1]]), float(gap[part].mean()))
        for part in np.array_split(order, min(parts, len(order)))
    ]
