"""Which prompts to train on: a store of rewards by prompt, and pure functions that choose.

State is a tuple of NumPy arrays, so that a checkpoint holds it whole. Choosing is
`(state, ...) -> (state, ids)`: random choices draw from a stream named by the state's seed and by
its number of draws, and a restored state chooses as the original would have.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

S = TypeVar("S", bound=tuple)


class Prompts(NamedTuple):
    """Rewards of N prompts."""

    seed: np.ndarray
    """scalar uint64."""
    draws: np.ndarray
    """scalar int64: random choices made so far."""
    visits: np.ndarray
    """[N] int64: batches that the prompt was in. While one is drawn, those in flight count too."""
    curve: np.ndarray
    """[N, W] float32: its mean rewards at the last W visits, the newest last; nan before."""


Choose = Callable[[Prompts, int, np.ndarray], tuple[Prompts, np.ndarray]]
"""(state, how many, [N] bool which may be chosen) -> (state, ids)."""


def start(count: int, *, window: int = 8, seed: int = 0) -> Prompts:
    """An empty store for prompts 0 to count - 1."""
    if count < 1 or window < 1:
        raise ValueError(f"count={count} and window={window} must be positive")
    return Prompts(
        np.uint64(seed),
        np.int64(0),
        np.zeros(count, np.int64),
        np.full((count, window), np.nan, np.float32),
    )


def stream(state: Any) -> np.random.Generator:
    """What the next random choice of a state with a `seed` and `draws` draws from."""
    return np.random.Generator(np.random.Philox(key=[int(state.seed), int(state.draws)]))


def record(state: Prompts, ids: np.ndarray, rewards: np.ndarray) -> Prompts:
    """Enter the rewards of a batch.

    Args:
      state: before.
      ids: [P] prompts, each at most once.
      rewards: [P, G] of their completions; nan is a failed score. A prompt with no score at all
        counts as not visited.
    """
    ids, rewards = np.asarray(ids), np.asarray(rewards, np.float64)
    if len(np.unique(ids)) != len(ids):
        raise ValueError(f"ids={ids.tolist()} repeat a prompt; record each batch of it by itself")
    scored = ~np.isnan(rewards).all(axis=1)
    ids, rewards = ids[scored], rewards[scored]
    visits, curve = state.visits.copy(), state.curve.copy()
    visits[ids] += 1
    curve[ids] = np.concatenate([curve[ids, 1:], np.nanmean(rewards, 1, keepdims=True)], axis=1)
    return state._replace(visits=visits, curve=curve)


def pass_rate(state: Prompts) -> np.ndarray:
    """[N] mean of each prompt's curve; nan where it was never visited."""
    visit_mask = ~np.isnan(state.curve)
    total = np.where(visit_mask, state.curve, 0.0).sum(axis=1)
    return np.where(visit_mask.any(axis=1), total / np.maximum(visit_mask.sum(axis=1), 1), np.nan)


def sample(state: Prompts, count: int, weights: np.ndarray) -> tuple[Prompts, np.ndarray]:
    """`count` ids without replacement, each next one with probability proportional to its weight.

    Raises:
      ValueError: fewer than `count` positive weights.
    """
    if (weights > 0).sum() < count:
        raise ValueError(f"count={count}: only {(weights > 0).sum()} prompts may be chosen")
    rng = stream(state)
    with np.errstate(divide="ignore"):
        keys = np.log(weights) + rng.gumbel(size=len(weights))  # Gumbel top-k
    chosen = np.argsort(-keys, kind="stable")[:count]
    return state._replace(draws=state.draws + 1), chosen


def uniform(state: Prompts, count: int, allowed: np.ndarray) -> tuple[Prompts, np.ndarray]:
    """Uniform over the allowed prompts."""
    return sample(state, count, allowed.astype(np.float64))


def passes(state: Prompts, count: int, allowed: np.ndarray) -> tuple[Prompts, np.ndarray]:
    """Epochs: every allowed prompt once, in random order, before any comes again."""
    chosen = highest(state, count, allowed, at_random(state) - state.visits)[1]
    return state._replace(draws=state.draws + 1), chosen


def closest(
    state: Prompts,
    count: int,
    allowed: np.ndarray,
    closeness: np.ndarray,
    *,
    share: float = 0.3,
) -> tuple[Prompts, np.ndarray]:
    """Uniform over the share of the allowed prompts whose solutions are worth most, by DONOD.

    In a run, prompts whose solution is longer than `rollout.max_new_tokens` are not allowed.

    Args:
      state: of the prompts.
      count: of a batch.
      allowed: [N] bool.
      closeness: [N], see `jaxrl.losses.pruning.donod`.
      share: of the allowed prompts, above 0 and up to 1.

    Raises:
      ValueError: a share out of range, or too small for a batch.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share}: use a share above 0 and up to 1")
    candidates = highest(state, round(share * allowed.sum()), allowed, closeness)[1]
    return uniform(state, count, np.isin(np.arange(len(allowed)), candidates))


def difficulty_targeted(
    state: Prompts, count: int, allowed: np.ndarray, *, target: float = 0.5, width: float = 0.2
) -> tuple[Prompts, np.ndarray]:
    """Weights `exp(-((p - target) / width)^2 / 2)`; an unseen prompt is taken to be at the target.

    A reward in {0, 1} varies most, and teaches most, at pass rate 1/2.
    """
    rate = np.nan_to_num(pass_rate(state), nan=target)
    weights = np.exp(-0.5 * ((rate - target) / width) ** 2)
    return sample(state, count, np.where(allowed, np.maximum(weights, 1e-12), 0.0))


def frontier(
    state: Prompts, count: int, allowed: np.ndarray, *, visits: float = 2
) -> tuple[Prompts, np.ndarray]:
    """Prompts that the policy passes at times, then untried ones, then all others.

    A prompt is passed at times if its mean reward at the last visit was above 0 and below 1; it
    counts as such for its first `visits` visits. Untried prompts come in their order, and others by
    the fewest visits: so an improved policy tries again what an earlier one never or always passed.
    KARL keeps synthesised questions by such pass rates (Databricks 2026); the order is ours.
    """
    last, most = state.curve[:, -1], state.visits.max(initial=0) + 1
    at_times = (last > 0) & (last < 1) & (state.visits < visits)
    tier = np.where(at_times, 2.0, state.visits == 0)
    return highest(state, count, allowed, tier - state.visits / most)


def informative(rewards: np.ndarray) -> np.ndarray:
    """[P] bool: whether the scored rewards [P, G] of a prompt differ; others train nothing."""
    scored = ~np.isnan(rewards)
    high = np.where(scored, rewards, -np.inf).max(axis=1)
    low = np.where(scored, rewards, np.inf).min(axis=1)
    return high > low


class Quota(NamedTuple):
    """Dynamic sampling of one training batch."""

    wanted: np.ndarray
    """scalar int64: informative prompts that the batch needs."""
    budget: np.ndarray
    """scalar int64: prompts that may be sampled for it, in all."""
    kept: np.ndarray
    """scalar int64: informative ones so far."""
    sampled: np.ndarray
    """scalar int64: prompts so far."""


def quota(wanted: int, *, oversampling: float = 3.0) -> Quota:
    """An empty batch that may sample `oversampling` times what it needs, rounded up."""
    if wanted < 1 or oversampling < 1:
        raise ValueError(f"wanted={wanted}, oversampling={oversampling}: both must be 1 or more")
    budget = math.ceil(wanted * oversampling - 1e-9)  # in floating point, 10 * 1.1 is above 11
    return Quota(*map(np.int64, (wanted, budget, 0, 0)))


def dynamic(state: Quota, rewards: np.ndarray) -> tuple[Quota, np.ndarray, int]:
    """DAPO's dynamic sampling (Yu et al. 2025), bounded: keep informative prompts, ask for more.

    Args:
      state: of this batch.
      rewards: [P, G] of the newly sampled prompts.

    Returns:
      The state, [P] bool which to keep (no more than are needed), and how many prompts to sample
      next: 0 when the batch is full or the budget is spent, else enough at the rate seen so far.
    """
    good = informative(rewards)
    keep = good & (np.cumsum(good) <= state.wanted - state.kept)
    state = state._replace(kept=state.kept + keep.sum(), sampled=state.sampled + len(rewards))
    missing, left = int(state.wanted - state.kept), int(state.budget - state.sampled)
    rate = max(int(state.kept), 1) / max(int(state.sampled), 1)
    return state, keep, min(int(np.ceil(missing / rate)), left) if missing else 0


def highest(
    state: Prompts, count: int, allowed: np.ndarray, score: np.ndarray
) -> tuple[Prompts, np.ndarray]:
    """The `count` allowed prompts of highest score, ties by id; nan is lowest."""
    ranked = np.where(allowed & ~np.isnan(score), score, -np.inf)
    if np.isfinite(ranked).sum() < count:
        raise ValueError(f"count={count}: only {np.isfinite(ranked).sum()} prompts have a score")
    return state, np.argsort(-ranked, kind="stable")[:count]


def easiest_first(state: Prompts, count: int, allowed: np.ndarray) -> tuple[Prompts, np.ndarray]:
    """Passes through the prompts from easy to hard, as the policy last found them.

    Among the prompts of fewest visits, those of highest pass rate at their last visit; the first
    pass goes by id. ADCL sorts each batch anew by rates sampled for it ("Learning Like Humans",
    2025); here the last visit has to do.
    """
    last = np.nan_to_num(state.curve[:, -1].astype(np.float64))
    return highest(state, count, allowed, np.clip(last, 0, 1) - 2 * state.visits)


def historical_variance(state: Prompts) -> np.ndarray:
    """[N] variance of each curve, by which 1-shot RLVR ranks prompts (Wang et al. 2025).

    nan with fewer than 2 visits.
    """
    visit_mask = ~np.isnan(state.curve)
    count = visit_mask.sum(axis=1)
    mean = np.where(visit_mask, state.curve, 0.0).sum(axis=1) / np.maximum(count, 1)
    squares = np.where(visit_mask, state.curve - mean[:, None], 0.0) ** 2
    return np.where(count >= 2, squares.sum(axis=1) / np.maximum(count, 1), np.nan)


def difficulty(state: Prompts) -> np.ndarray:
    """[N] less the mean reward: BLEUBERI keeps the prompts that the base model does worst.

    nan where a prompt was never visited (Chang et al. 2025).
    """
    return -pass_rate(state)


def learning_impact(state: Prompts) -> np.ndarray:
    """LIMR's alignment of each curve with the average one (Li et al. 2025).

    `1 - sum_k (r_i^k - r_avg^k)^2 / sum_k (1 - r_avg^k)^2` over the epochs k of the window, in
    which every prompt was visited once. The paper keeps prompts above about 0.6; 1 is a perfect
    alignment. nan where the curve is not full.
    """
    full = ~np.isnan(state.curve).any(axis=1)
    if not full.any():
        return np.full(len(full), np.nan)
    average = state.curve[full].mean(axis=0)
    gap = np.sum((1 - average) ** 2)
    misfit = np.sum((state.curve - average) ** 2, axis=1)
    return np.where(full, 1 - misfit / gap if gap > 0 else 1.0, np.nan)


def failing(state: Prompts, *, threshold: float = 0.5) -> np.ndarray:
    """[N] bool: SwS's failed prompts (Liang et al. 2025): never passed often, nor rising.

    `max_k r_k <= threshold` and the least-squares slope of the curve is not positive. A prompt that
    was never visited is not among them. A review of the paper has `<` and a negative slope.
    """
    visit_mask = ~np.isnan(state.curve)
    best = np.where(visit_mask, state.curve, -np.inf).max(axis=1)
    time = np.arange(state.curve.shape[1])
    count = np.maximum(visit_mask.sum(axis=1, keepdims=True), 1)
    centred = np.where(
        visit_mask, time - (visit_mask * time).sum(axis=1, keepdims=True) / count, 0.0
    )
    rise = np.sum(centred * np.where(visit_mask, state.curve, 0.0), axis=1)
    return visit_mask.any(axis=1) & (best <= threshold) & (rise <= 1e-9)


def at_random(state: Prompts) -> np.ndarray:
    """[N] scores without meaning: the control of any selection."""
    return stream(state).random(len(state.visits))


def solvable_at_random(state: Prompts) -> np.ndarray:
    """[N] scores without meaning of the prompts that were solved now and then, and minus 1 of
    others: the control of a selection that leaves those out."""
    rate = pass_rate(state)
    return np.where((rate > 0) & (rate < 1), at_random(state), -1.0)


def least_solved(state: Prompts) -> np.ndarray:
    """[N] minus the pass rate, for what a policy is least likely to solve; nan if never visited.

    Prompts of pass rate 0 come last: a group that fails as a whole teaches nothing.
    """
    rate = pass_rate(state)
    return np.where(rate > 0, -rate, np.where(np.isnan(rate), np.nan, -2.0))


def within_reach(state: Prompts, *, target: float = 0.5) -> np.ndarray:
    """[N] minus the distance of the pass rate from `target`: data as hard as the policy is able."""
    return -np.abs(pass_rate(state) - target)


def central(state: Prompts, *, low: float = 0.25, high: float = 0.75) -> np.ndarray:
    """[N] minus the distance from the median of the mean rewards, in ranks; Rubric Anchors' filter.

    nan outside the quantiles `low` and `high`, and where a prompt was never visited. What earns
    most teaches nothing, and of what earns least much is noise (Huang et al. 2025; which
    quantiles, the paper does not say).
    """
    rate = pass_rate(state)
    below, above = np.nanquantile(rate, [low, high]) if (~np.isnan(rate)).any() else (0.0, 0.0)
    inside = (rate >= below) & (rate <= above)
    ranks = np.array([np.sum(rate < r) + np.sum(rate == r) / 2 for r in rate])
    return np.where(inside, -np.abs(ranks - np.sum(~np.isnan(rate)) / 2), np.nan)


def hardest_retained(
    state: Prompts, count: int, allowed: np.ndarray, *, solved: float = 1.0
) -> tuple[Prompts, np.ndarray]:
    """DRIVE's hard-focus stage (Zhu et al. 2025): keep the `count` of lowest pass rate.

    Call it at each phase with what it kept before as `allowed` and a smaller count. Prompts at
    pass rate `solved` or above leave, and unseen ones count as hardest; fewer than `count` may
    be left.
    """
    rate = np.nan_to_num(pass_rate(state), nan=-1.0)
    open_ = allowed & (rate < solved)
    return highest(state, min(count, int(open_.sum())), open_, -rate)


def stage_at(stages: Sequence[tuple[int, Mapping[str, Any]]], step: int) -> dict[str, Any]:
    """The settings in force at a step: lengths, group size, data set, weights, whatever they are.

    Args:
      stages: (first step, what changes there), the first from step 0 on; a setting holds until a
        later stage changes it.
      step: from 0.
    """
    if not stages or stages[0][0] != 0 or any(a[0] >= b[0] for a, b in itertools.pairwise(stages)):
        raise ValueError(f"stages start at {[s for s, _ in stages]}: must rise from 0")
    settings: dict[str, Any] = {}
    for first, changes in stages:
        if first <= step:
            settings |= changes
    return settings


def to_json(state: tuple) -> dict[str, dict[str, Any]]:
    """A state as plain values, exact to the bit."""
    return {
        name: {
            "dtype": np.asarray(value).dtype.str,
            "shape": list(np.shape(value)),
            "data": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode(),
        }
        for name, value in state._asdict().items()
    }


def from_json(kind: type[S], values: Mapping[str, Mapping[str, Any]]) -> S:
    """The state of a kind (`Prompts`, ...) that `to_json` made plain.

    A field that has a default may be missing, as in a state of an earlier version.

    Raises:
      ValueError: fields of another kind.
    """
    if not set(kind._fields) - set(kind._field_defaults) <= set(values) <= set(kind._fields):
        raise ValueError(f"{kind.__name__} has {kind._fields}, not {sorted(values)}")
    read = {
        name: np.frombuffer(base64.b64decode(v["data"]), v["dtype"]).reshape(v["shape"]).copy()
        for name, v in values.items()
    }
    return kind(**{name: value if value.ndim else value[()] for name, value in read.items()})
