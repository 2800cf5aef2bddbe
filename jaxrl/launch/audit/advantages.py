"""Checks of recorded advantages: what the rewards of a group were less, and divided by."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxrl.launch.audit.findings import Finding
from jaxrl.launch.audit.traces import Trace

_LEAST = 1e-3
"""Differences of advantages, relative to their largest, that rounding does not explain."""


def denominators(traces: Sequence[Trace]) -> Iterator[Finding]:
    """Advantages that are not the rewards less the mean of their group, over one scale.

    Every usual estimator of groups is such a line: A_i = (r_i - b) / s, with b the mean and s 1 or
    a standard deviation (leave-one-out: s = (n - 1) / n). A line through the recorded pairs gives
    b and s; what b would have to be a mean of is said.
    """
    yield from _totals(traces)
    groups = collections.defaultdict[str, list[Trace]](list)
    for trace in traces:
        if trace.group is not None and trace.reward is not None and trace.advantage is not None:
            groups[trace.group].append(trace)
    lines = {name: line for name, rows in groups.items() if (line := _line(rows)) is not None}
    for name, (slope, baseline, residual) in lines.items():
        rows = groups[name]
        rewards = np.array([trace.reward for trace in rows])
        mean, spread = rewards.mean(), np.ptp(rewards)
        if residual > _LEAST:
            yield Finding(
                "wrong_denominator", rows[0].where, residual,
                f"group {name}: its {len(rows)} advantages are no linear function of the rewards, "
                f"off by {residual:.1%} of the largest",
            )  # fmt: skip
        elif abs(baseline - mean) > _LEAST * spread:
            yield Finding(
                "wrong_denominator", rows[0].where, abs(baseline - mean),
                f"group {name}: the advantages are rewards less {baseline:.4g}, the mean of its "
                f"{len(rows)} rewards is {mean:.4g}{_explained(rewards, baseline)}",
            )  # fmt: skip
        elif slope < 0:
            yield Finding(
                "wrong_denominator", rows[0].where, abs(slope),
                f"group {name}: larger rewards have smaller advantages",
            )  # fmt: skip
    yield from _scales(groups, lines)


def _totals(traces: Sequence[Trace]) -> Iterator[Finding]:
    """TRL's count of the tokens of a batch, where it counts tokens that the loss is not over."""
    batches = collections.defaultdict[float, list[Trace]](list)
    for trace in traces:
        if trace.items is not None:
            batches[trace.items].append(trace)
    for items, rows in batches.items():
        turns = [turn for trace in rows for turn in trace.turns]
        sampled = sum(len(turn.tokens) for turn in turns)
        trained = sum(
            len(turn.tokens) if turn.trained is None else int(turn.trained.sum()) for turn in turns
        )
        if items == sampled != trained:
            yield Finding(
                "wrong_denominator", rows[0].where, sampled / max(trained, 1),
                f"the loss is divided by {items:.0f} tokens, all of {len(rows)} completions, and "
                f"is over {trained}: tool results and other masked tokens count",
            )  # fmt: skip


def _line(rows: Sequence[Trace]) -> tuple[float, float, float] | None:
    """Slope, baseline and largest residual, relative, of advantages over rewards.

    None where the rewards are equal, so that there is no line.
    """
    rewards = np.array([trace.reward for trace in rows])
    advantages = np.array([trace.advantage for trace in rows])
    if len(rows) < 2 or np.ptp(rewards) == 0 or not np.isfinite([*rewards, *advantages]).all():
        return None
    slope, intercept = np.polyfit(rewards, advantages, 1)
    largest = np.abs(advantages).max()
    if largest == 0 or abs(slope) * np.ptp(rewards) < _LEAST * largest:
        return (0.0, float(rewards.mean()), float(largest > 0))
    residual = np.abs(advantages - (slope * rewards + intercept)).max() / largest
    return float(slope), float(-intercept / slope), float(residual)


def _explained(rewards: np.ndarray, baseline: float) -> str:
    """What the baseline is the mean of, if that can be told."""
    if baseline == 0 or abs(total := rewards.sum() / baseline) > 1e6:
        return ""
    count = round(total)
    if count > 0 and abs(total - count) < 1e-2 and count != len(rewards):
        excess = "more, which have a reward of 0 or are not in the file" * (count > len(rewards))
        fewer = "fewer" * (count < len(rewards))
        return f"; it is their sum over {count}, {abs(count - len(rewards))} {excess}{fewer}"
    return ""


def _scales(
    groups: Mapping[str, Sequence[Trace]], lines: Mapping[str, tuple[float, float, float]]
) -> Iterator[Finding]:
    """Groups that are scaled by another rule than most."""
    rules = {name: _rule(groups[name], line[0]) for name, line in lines.items() if line[0] > 0}
    counts = collections.Counter(rule for rule in rules.values())
    if len(counts) < 2:
        return
    (usual, number), *_ = counts.most_common()
    if number <= len(rules) / 2:
        return
    for name, rule in rules.items():
        if rule != usual:
            rewards = [trace.reward for trace in groups[name]]
            yield Finding(
                "wrong_denominator", groups[name][0].where, 1 / lines[name][0],
                f"group {name}: its {len(rewards)} differences are divided by "
                f"{1 / lines[name][0]:.4g} ({rule}), those of {number} other groups by {usual}",
            )  # fmt: skip


def _rule(rows: Sequence[Trace], slope: float) -> str:
    """The name of what differences are divided by; several rules may agree, the first is taken."""
    rewards = np.array([trace.reward for trace in rows])
    count, scale = len(rows), 1 / slope
    rules = {
        "1": 1.0,
        "the standard deviation": float(rewards.std()),
        "the sample standard deviation": float(rewards.std(ddof=1)),
        "(n - 1) / n": (count - 1) / count,
    }
    near = (name for name, value in rules.items() if math.isclose(scale, value, rel_tol=5e-3))
    return next(near, "another number")
