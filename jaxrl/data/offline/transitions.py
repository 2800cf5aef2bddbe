"""The one type of control data: N steps in a row, trajectory after trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Transitions(NamedTuple):
    """N steps of one or more trajectories; a batch has another N, a single step no axis N at all.

    Being a named tuple of arrays it is a pytree to JAX, and NumPy to this package.
    """

    observations: Any
    """[N, O] float32, or uint8 of pictures."""
    actions: Any
    """[N, A] float32 in [-1, 1], or [N] int32."""
    rewards: Any
    """[N] float32."""
    next_observations: Any
    """[N, O], likewise: what followed the action, not the first of the next trajectory. At a
    terminal nothing is read here."""
    terminals: Any
    """[N] float32: 1 where the episode ended by itself, so that nothing is to come. A time limit
    is no terminal."""
    ends: Any
    """[N] float32: 1 at the last step of a trajectory, ended or cut off."""
    extra: Mapping[str, Any] = {}
    """Further arrays [N, ...] that an algorithm has prepared for itself."""


def check(data: Transitions) -> Transitions:
    """`data` with the dtypes above, its last step marked as an end.

    A terminal is not made an end: data of one task may go on after its goal was reached. Next
    observations that are not finite are allowed at terminals, and replaced by the step's own. Whole
    numbers [N, 1] are choices [N], and observations of several axes are flattened; those of uint8
    stay so.

    Raises:
      ValueError: lengths that differ, values that are not finite, actions outside the box.
    """
    data = _plain(data)
    count = len(data.rewards)
    if len(data.next_observations) == len(data.observations) == len(data.terminals) == count:
        over = np.asarray(data.terminals)[:, None] > 0
        over = over & ~np.isfinite(data.next_observations)
        after = np.where(over, data.observations, data.next_observations)
        data = data._replace(next_observations=after)
    for name, value in zip(data._fields[:-1], data[:-1], strict=True):
        if len(value) != count:
            raise ValueError(f"{name} has {len(value)} steps and rewards {count}; cut them alike")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"{name} holds values that are not finite; drop those trajectories")
    actions = np.asarray(data.actions)
    if actions.ndim == 2 and np.abs(actions).max(initial=0.0) > 1.0 + 1e-4:
        raise ValueError(
            f"actions reach {np.abs(actions).max():.3g}; scale them to [-1, 1] by the bounds of "
            "the environment, with jaxrl.data.offline.transitions.to_unit_box"
        )
    ends = np.asarray(data.ends, np.float32).copy()
    ends[-1:] = 1.0
    plain = [
        x if name in ("observations", "next_observations") and x.dtype == np.uint8
        else np.asarray(x, np.float32)
        for name, x in zip(data._fields[:-1], data[:-1], strict=True)
    ]  # fmt: skip
    checked = Transitions(*plain, dict(data.extra))._replace(ends=ends)
    return checked._replace(actions=actions.astype(np.int32)) if actions.ndim == 1 else checked


def _plain(data: Transitions) -> Transitions:
    """Observations [N, O], and choices [N] for those of shape [N, 1]."""
    states, following = (np.asarray(x) for x in (data.observations, data.next_observations))
    if states.ndim != 2:
        states, following = (x.reshape(len(x), -1) for x in (states, following))
    actions = np.asarray(data.actions)
    if actions.ndim == 2 and actions.shape[1] == 1 and actions.dtype.kind in "iu":
        actions = actions[:, 0]
    return data._replace(observations=states, next_observations=following, actions=actions)


def to_unit_box(actions: Any, low: Any, high: Any) -> np.ndarray:
    """Actions [..., A] of a box as points of [-1, 1]^A, float32; `from_unit_box` is the inverse.

    Args:
      actions: inside the box.
      low, high: its bounds, [A].

    Raises:
      ValueError: a bound that is not finite, or no room between two.
    """
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise ValueError(
            f"action bounds low={low.tolist()}, high={high.tolist()}: give finite ones, low below "
            "high"
        )
    return ((2.0 * np.asarray(actions) - low - high) / (high - low)).astype(np.float32)


def from_unit_box(actions: Any, low: Any, high: Any) -> np.ndarray:
    """Points [..., A] of [-1, 1]^A as actions of the box with bounds `low` and `high`, [A]."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return (low + high + (high - low) * np.asarray(actions)) / 2.0


def episodes(data: Transitions) -> list[slice]:
    """Where each trajectory lies."""
    stops = np.flatnonzero(data.ends) + 1
    return [slice(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True)]


def returns(data: Transitions) -> np.ndarray:
    """Undiscounted return of each trajectory, [episodes] float64."""
    return np.array([np.sum(data.rewards[e], dtype=np.float64) for e in episodes(data)])


def returns_to_go(data: Transitions, discount: float = 1.0) -> np.ndarray:
    """Discounted sum of rewards from each step to the end of its trajectory, [N] float32."""
    out = np.zeros(len(data.rewards), np.float32)
    following = 0.0
    for i in reversed(range(len(out))):
        following = data.rewards[i] + discount * following * (1.0 - data.ends[i])
        out[i] = following
    return out


def relabel(data: Transitions, reward: Callable[[Any, Any, Any], Any]) -> Transitions:
    """`data` with another reward.

    Args:
      data: whose steps are paid anew.
      reward: observations [N, O], actions [N, ...] and next observations [N, O] -> rewards [N].

    Raises:
      ValueError: as many rewards as steps were not given, or one that is not finite.
    """
    rewards = np.asarray(reward(data.observations, data.actions, data.next_observations))
    if rewards.shape != (len(data.rewards),):
        raise ValueError(
            f"reward gave {list(rewards.shape)} numbers for {len(data.rewards)} steps; give one "
            "for each"
        )
    return check(data._replace(rewards=rewards))


def next_actions(data: Transitions) -> np.ndarray:
    """The action that followed in the data, [N, A]; the last of a trajectory has its own."""
    ahead = np.concatenate([data.actions[1:], data.actions[-1:]])
    return np.where(data.ends[:, None] > 0, data.actions, ahead)


def take(data: Transitions, index: Any) -> Transitions:
    """The steps that `index`, any of NumPy's kinds, names."""
    plain = [x[index] for x in data[:-1]]
    return Transitions(*plain, {name: x[index] for name, x in data.extra.items()})


def choose(data: Transitions, which: Sequence[int]) -> Transitions:
    """The trajectories of these numbers, in this order."""
    where = episodes(data)
    return take(data, np.concatenate([np.arange(where[i].start, where[i].stop) for i in which]))


def best(data: Transitions, share: float) -> Transitions:
    """The trajectories of highest return that make up at least `share` of the steps (%BC).

    Raises:
      ValueError: a share outside (0, 1].
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share={share}: give a part of the steps in (0, 1]")
    order = np.argsort(-returns(data), kind="stable")
    lengths = np.array([e.stop - e.start for e in episodes(data)])[order]
    enough = int(np.searchsorted(np.cumsum(lengths), share * len(data.rewards))) + 1
    return choose(data, sorted(order[:enough]))


def concatenate(parts: Sequence[Transitions]) -> Transitions:
    """One data set of several; of `extra`, what all have.

    Raises:
      ValueError: there are none.
    """
    if not parts:
        raise ValueError("the data have no episode of two steps or more; choose others")
    plain = [np.concatenate(xs) for xs in zip(*(p[:-1] for p in parts), strict=True)]
    shared = set.intersection(*(set(p.extra) for p in parts))
    return Transitions(
        *plain, {name: np.concatenate([p.extra[name] for p in parts]) for name in sorted(shared)}
    )


def mix(
    parts: Sequence[Transitions], shares: Sequence[float], steps: int, seed: int
) -> Transitions:
    """About `steps` steps, the part of each source in whole trajectories drawn at random.

    Raises:
      ValueError: a source that is too small for its share.
    """
    rng = np.random.default_rng(seed)
    subsets = []
    for number, (part, share) in enumerate(zip(parts, shares, strict=True)):
        target_steps = share / sum(shares) * steps
        if target_steps > len(part.rewards):
            raise ValueError(
                f"source {number} has {len(part.rewards)} steps and its share of the mix is "
                f"{target_steps:.0f}; gather more, or lower steps={steps}"
            )
        order = rng.permutation(len(episodes(part)))
        lengths = np.array([e.stop - e.start for e in episodes(part)])[order]
        count = int(np.searchsorted(np.cumsum(lengths), target_steps)) + 1
        if share:
            subsets.append(choose(part, order[:count]))
    return concatenate(subsets)


def success_labels(data: Transitions, source: str) -> np.ndarray:
    """Which steps of labelled data come to success, [N] bool.

    Raises:
      ValueError: only one kind of them, or a file that does not hold what follows success.
    """
    success = np.asarray(data.rewards) > 0
    if success.all() or not success.any():
        raise ValueError(
            f"{source}: {int(success.sum())} of {len(success)} steps have a reward above 0, and a "
            "classifier of success needs both kinds; give --algorithm.labels a file with both, or "
            "--algorithm.classifier-steps 0"
        )
    before, after = np.asarray(data.observations), np.asarray(data.next_observations)
    if (before[success] == after[success]).all():
        raise ValueError(
            f"{source}: what follows a step with a reward above 0 is its own observation, so no "
            "picture shows success; give the file next_observations"
        )
    return success
