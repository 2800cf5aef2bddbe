"""Replay: groups of earlier steps, with the log-probabilities and versions of that time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxrl import functions
from jaxrl.config import ReplayConfig
from jaxrl.types import Trajectory

_KEPT, _CHOSEN = {"rewards", "lengths"}, {"ages", "rewards", "count", "rng"}


class Replay(NamedTuple):
    """A buffer; its state lives in the run's checkpoints."""

    mix: Callable[[Trajectory, int, int], Trajectory]
    """`(batch, group size, version)`: the batch with groups of the buffer behind it, among which
    are none of its own; a buffer that has too few makes them up with empty ones."""
    get_state: Callable[[], list[dict[str, np.ndarray]]]
    set_state: Callable[[list[dict[str, np.ndarray]]], None]


def check(config: ReplayConfig, prompts: int, updates: int) -> None:
    """Refuse rules that do not exist, and batches that do not come apart into equal updates."""
    if not config.groups:
        return
    functions.resolve(config.keep, config.keep_args, _KEPT)
    functions.resolve(config.choose, config.choose_args, _CHOSEN)
    if config.size < config.groups:
        raise ValueError(
            f"replay.size={config.size} cannot give replay.groups={config.groups}; raise it"
        )
    if config.groups % updates:
        raise ValueError(
            f"updates_per_batch={updates} does not divide replay.groups={config.groups}; choose a "
            f"divisor of it and of rollout.prompts={prompts}"
        )


def open_buffer(config: ReplayConfig, seed: int) -> Replay:
    """An empty buffer of up to `config.size` groups; the oldest make way."""
    groups: list[dict[str, Any]] = []

    def mix(batch: Trajectory, size: int, version: int) -> Trajectory:
        nonlocal groups
        groups = [g for g in groups if not config.max_age or _age(g, version) <= config.max_age]
        taken = [groups[i] for i in _choose(config, groups, version, seed)]
        mixed = _joined(batch, taken, config.groups, size)
        groups = (groups + _kept(config, batch, size))[-config.size :]
        return mixed

    def set_state(state: list[dict[str, np.ndarray]]) -> None:
        nonlocal groups
        groups = list(state)

    return Replay(mix, lambda: groups, set_state)


def _age(group: dict[str, np.ndarray], version: int) -> int:
    return version - int(group["policy_version"][group["action_mask"]].min())


def _choose(
    config: ReplayConfig, groups: list[dict[str, Any]], version: int, seed: int
) -> np.ndarray:
    choose = functions.resolve(config.choose, config.choose_args, _CHOSEN)
    given = {
        "ages": np.array([_age(g, version) for g in groups], np.int64),
        "rewards": np.array([g["rewards"] for g in groups]),
        "count": config.groups,
        "rng": np.random.default_rng([seed, version]),
    }
    return functions.call(choose, config.choose_args, given) if groups else np.zeros(0, np.int64)


def _kept(config: ReplayConfig, batch: Trajectory, size: int) -> list[dict[str, np.ndarray]]:
    keep = functions.resolve(config.keep, config.keep_args, _KEPT)
    rewards = np.where(batch.valid, batch.rewards, np.nan).reshape(-1, size)
    lengths = batch.action_mask.sum(axis=1).reshape(-1, size)
    given = {"rewards": rewards, "lengths": lengths}
    rows = functions.call(keep, config.keep_args, given) & batch.valid.reshape(-1, size)
    out = []
    for p in np.flatnonzero(rows.any(axis=1)):
        at = slice(p * size, (p + 1) * size)
        group = {k: np.array(a[at]) for k, a in vars(batch).items() if a is not None}
        # the others stay as what the kept are compared with, and are not trained on again
        group["action_mask"] &= rows[p][:, None]
        out.append(group)
    return out


def _joined(
    batch: Trajectory, groups: list[dict[str, np.ndarray]], wanted: int, size: int
) -> Trajectory:
    count, own = len(batch.tokens), len(batch.tokens) // size
    length = max([batch.tokens.shape[1], *(g["tokens"].shape[1] for g in groups)])
    fields: dict[str, np.ndarray] = {}
    for name, array in vars(batch).items():
        if array is None:
            continue
        shape = (count + wanted * size, *array.shape[1:])
        if array.shape == batch.tokens.shape:
            shape = (shape[0], length)
        whole = np.zeros(shape, array.dtype)
        whole[(slice(count), *(slice(n) for n in array.shape[1:]))] = array
        for i, group in enumerate(groups):
            if name in group:
                rows = slice(count + i * size, count + (i + 1) * size)
                whole[(rows, *(slice(n) for n in group[name].shape[1:]))] = group[name]
        fields[name] = whole
    fields["group_ids"] = np.repeat(np.arange(own + wanted, dtype=np.int32), size)
    return Trajectory(**fields)
