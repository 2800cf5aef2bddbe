"""Domain weights that are learned during the run, and prompts ranked by a signal.

As in `jaxrl.data.selection.curriculum`, states are tuples of arrays and functions are pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxrl.data.selection.curriculum import stream

_LEAST = 0.05  # mean loss that a later one is measured by, at least


class Domains(NamedTuple):
    """State of a bandit over D domains."""

    seed: np.ndarray
    """scalar uint64."""
    draws: np.ndarray
    """scalar int64."""
    value: np.ndarray
    """[D] float64: moving average of the domain's signal."""
    recent: np.ndarray
    """[D, W] float64: its last W signals, the newest last; nan before."""
    pulls: np.ndarray
    """[D] int64: completions seen."""


def start(count: int, *, window: int = 64, seed: int = 0, initial: float = 0.0) -> Domains:
    """Nothing known of `count` domains but an initial value."""
    if count < 1 or window < 1:
        raise ValueError(f"count={count} and window={window} must be positive")
    return Domains(
        np.uint64(seed),
        np.int64(0),
        np.full(count, initial, np.float64),
        np.full((count, window), np.nan),
        np.zeros(count, np.int64),
    )


def observe(
    state: Domains, domains: np.ndarray, signal: np.ndarray, *, rate: float = 0.5
) -> Domains:
    """Enter a batch: `value <- (1 - rate) value + rate mean(signal)` for each domain in it.

    Args:
      state: before.
      domains: [N] int, of each completion.
      signal: [N], |advantage| for `sec` and `dump`, reward for `dads`; nan is a failed score.
      rate: of the moving average.
    """
    domains, signal = np.asarray(domains), np.asarray(signal, np.float64)
    value, recent, pulls = state.value.copy(), state.recent.copy(), state.pulls.copy()
    for d in np.unique(domains):
        domain_signal = signal[(domains == d) & ~np.isnan(signal)]
        if len(domain_signal):
            value[d] += rate * (domain_signal.mean() - value[d])
            recent[d] = np.concatenate([recent[d], domain_signal])[-recent.shape[1] :]
            pulls[d] += len(domain_signal)
    return state._replace(value=value, recent=recent, pulls=pulls)


def sec(state: Domains, *, temperature: float = 1.0) -> np.ndarray:
    """Self-Evolving Curriculum (Chen et al. 2025): `softmax(Q / temperature)`, Q the value [D]."""
    return _softmax(state.value / temperature)


def dump(state: Domains, *, temperature: float = 0.1) -> np.ndarray:
    """DUMP (Wang et al. 2025): softmax of upper confidence bounds over domains.

    `UCB_d = mean |A| over the window + sqrt(2 log(n + 1) / (n_d + 1))`, n completions in all.
    """
    window_mask = ~np.isnan(state.recent)
    mean = np.where(window_mask, state.recent, 0.0).sum(axis=1) / np.maximum(
        window_mask.sum(axis=1), 1
    )
    bonus = np.sqrt(2 * np.log(state.pulls.sum() + 1) / (state.pulls + 1))
    return _softmax((mean + bonus) / temperature)


def dads(
    state: Domains, *, target: float = 1.0, temperature: float = 0.5, floor: float = 0.05
) -> np.ndarray:
    """RuleReasoner's domain weights (Liu et al. 2025).

    `softmax(max(0, target - value) / temperature)`, mixed with the uniform so that every domain
    has at least `floor / D`.
    """
    weights = _softmax(np.maximum(0.0, target - state.value) / temperature)
    return (1 - floor) * weights + floor / len(weights)


def weaknesses(
    failing: np.ndarray, domains: np.ndarray, count: int, *, synthesized: float = 0.75
) -> np.ndarray:
    """Factors [D], of mean 1, by which SwS makes more problems of what fails (Liang et al. 2025).

    `1 - synthesized + synthesized D F_d / sum_d F_d`, F_d the failing prompts of domain d: the
    first part stands for the problems that there were, the second for those made for weaknesses.
    All 1 if nothing fails. The share is ours.

    Args:
      failing: [N] bool, of prompts; see `jaxrl.data.selection.curriculum.failing`.
      domains: [N] int in [0, count).
      count: of domains.
      synthesized: share of new problems among all.
    """
    failed = np.bincount(domains[failing], minlength=count).astype(np.float64)
    if not failed.any():
        return np.ones(count)
    return 1 - synthesized + synthesized * count * failed / failed.sum()


def recap(state: Domains, *, temperature: float = 5.0) -> np.ndarray:
    """RECAP's weights ("Beyond Reasoning Gains", 2025, equation 1): away from what improves.

    `softmax(s / temperature)`, `s = late / early + std / (late + early)`, of losses `1 - reward`,
    at least 0: means of the later and of the earlier half of a window, and the deviation within the
    later. A domain without any loss left has s = 1, as one that does not move, and one with fewer
    than 2 rewards counts as the most urgent.
    """
    urgency = np.full(len(state.value), np.nan)
    for d, row in enumerate(state.recent):
        losses = np.maximum(1 - row[~np.isnan(row)], 0.0)
        if len(losses) > 1:
            later = losses[len(losses) // 2 :]
            early, late = losses[: len(losses) // 2].mean(), later.mean()
            if early + late == 0:
                urgency[d] = 1.0
                continue
            urgency[d] = late / max(early, _LEAST) + later.std() / (late + early)
    most = np.nanmax(urgency) if np.isfinite(urgency).any() else 0.0
    return _softmax(np.nan_to_num(urgency, nan=most) / temperature)


def split(state: Domains, weights: np.ndarray, count: int) -> tuple[Domains, dict[int, int]]:
    """`count` prompts divided by domain: whole shares first, what is left by a random draw.

    Each domain gets its expected number rounded up or down, so that small batches are not
    dominated by chance. Domains that get none are left out.
    """
    expected = weights / weights.sum() * count
    counts = np.floor(expected + 1e-9).astype(np.int64)
    rng = stream(state)
    left, rest = np.maximum(expected - counts, 0), count - counts.sum()
    if rest:  # systematic sampling: each domain at most once, with its fraction as probability
        edges = np.cumsum(left) / left.sum() * rest
        marks = np.searchsorted(edges, np.arange(rest) + rng.random(), side="right")
        np.add.at(counts, np.minimum(marks, len(counts) - 1), 1)
    chosen = {d: int(n) for d, n in enumerate(counts) if n}
    return state._replace(draws=state.draws + 1), chosen


class Ranks(NamedTuple):
    """Prompts in order of a signal, and where on that order training is."""

    seed: np.ndarray
    """scalar uint64."""
    draws: np.ndarray
    """scalar int64."""
    order: np.ndarray
    """[N] int64: prompts, the most concentrated (easiest) first."""
    centre: np.ndarray
    """scalar float64: a rank."""
    signal: np.ndarray = np.zeros(0)
    """[N] float64: what they are ordered by, by prompt; empty in states of an earlier version."""
    last: np.ndarray = np.zeros(0, np.int64)
    """[P] int64: prompts of the last batch."""


def angle_concentration(hidden: np.ndarray, segments: np.ndarray) -> float:
    """GAIN-RL's signal of a prompt (Wang et al. 2025, "Angles Don't Lie"); our reading.

    The mean cosine between hidden states of different tokens within a segment, plus the mean
    between tokens of different segments (such as system and question); 0 for a part without pairs.

    Args:
      hidden: [T, D] hidden states of the prompt's tokens, from the policy's prefill.
      segments: [T] int.
    """
    unit = hidden / np.maximum(np.linalg.norm(hidden, axis=1, keepdims=True), 1e-12)
    cosine = unit @ unit.T
    same = segments[:, None] == segments[None, :]
    inner = same & ~np.eye(len(unit), dtype=bool)
    return sum(float(cosine[pairs].mean()) if pairs.any() else 0.0 for pairs in (inner, ~same))


def rank(signal: np.ndarray, *, seed: int = 0) -> Ranks:
    """Prompts ordered by falling signal [N], training at the first."""
    signal = np.asarray(signal, np.float64)
    order = np.argsort(-signal, kind="stable").astype(np.int64)
    return Ranks(np.uint64(seed), np.int64(0), order, np.float64(0), signal)


def gaussian(
    state: Ranks, count: int, *, width: float, allowed: np.ndarray | None = None
) -> tuple[Ranks, np.ndarray]:
    """`count` prompts without replacement, their ranks weighted by a Gaussian around the centre.

    Args:
      state: before.
      count: prompts.
      width: standard deviation, in ranks.
      allowed: [N] bool, which prompts may be chosen; None: all.
    """
    may = np.ones(len(state.order), bool) if allowed is None else allowed[state.order]
    if count > may.sum():
        raise ValueError(f"count={count} exceeds the {may.sum()} prompts there are")
    rng = stream(state)
    distance = (np.arange(len(state.order)) - state.centre) / width
    keys = np.where(may, -0.5 * distance**2 + rng.gumbel(size=len(state.order)), -np.inf)
    chosen = state.order[np.argsort(-keys, kind="stable")[:count]]
    return state._replace(draws=state.draws + 1, last=chosen), chosen


def move(
    state: Ranks, accuracy: float, angle: float, *, speed: float, target: float = 0.5
) -> Ranks:
    """Towards harder prompts as the batch is solved and its angles are small; never back.

    `centre += clip(speed (tanh(2 (accuracy - target)) + tanh(2 angle)) / 2, 0, speed)`, kept below
    N: as GAIN-RL's released code, whose speed is 1000 ranks.

    Args:
      state: before.
      accuracy: mean of the last batch, in [0, 1].
      angle: mean angle signal of the last batch, under the policy that has been trained on it.
      speed: ranks a step, at most.
      target: accuracy that moves the centre neither on nor back.
    """
    change = (np.tanh(2 * (accuracy - target)) + np.tanh(2 * angle)) / 2
    centre = min(state.centre + np.clip(speed * change, 0, speed), len(state.order) - 1)
    return state._replace(centre=np.float64(centre))


def gain(
    ranks: Ranks,
    count: int,
    allowed: np.ndarray,
    accuracy: float,
    concentration: float,
    *,
    width: float,
    speed: float,
    target: float = 0.5,
) -> tuple[Ranks, np.ndarray]:
    """GAIN-RL's choice of a batch (Wang et al. 2025): `move`, but for the first, then `gaussian`.

    Args:
      ranks: of the N prompts, by the angle signal that the policy gave them before training.
      count: prompts.
      allowed: [N] bool.
      accuracy: mean of the last batch; nan before the first.
      concentration: change of its mean angle signal since the ranking.
      width: see `gaussian`.
      speed: see `move`.
      target: see `move`.
    """
    if not np.isnan(accuracy):
        first = ranks.signal[ranks.last].mean() if len(ranks.last) and len(ranks.signal) else 0.0
        angle = float(first) + concentration
        ranks = move(ranks, accuracy, angle, speed=speed, target=target)
    return gaussian(ranks, count, width=width, allowed=allowed)


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()
