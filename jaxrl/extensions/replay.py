"""Experience replay: groups of earlier steps, with their log-probabilities and versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.extensions.critic import require_before_critic
from jaxrl.rollout import tasks
from jaxrl.run.extension import Context, Extension
from jaxrl.types import TrainState, Trajectory

_KEPT, _CHOSEN = {"rewards", "lengths", "versions"}, {"ages", "rewards", "count", "rng"}


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Groups of earlier steps that are trained on again."""

    groups: int = 8
    """Replayed groups added to each batch."""
    size: int = 256
    """Groups that the buffer holds."""
    max_age: int = 0
    """Optimizer updates after which a group is dropped; 0 drops the oldest when it is full."""
    keep: str = "everything"
    """Which completions are trained on again; the others of their groups stay as what these are
    compared with."""
    keep_args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    choose: str = "jaxrl.data.selection.replay:uniform"
    """Which groups are replayed."""
    choose_args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""


class Buffer(NamedTuple):
    """A replay buffer."""

    mix: Callable[[Trajectory, int, int], Trajectory]
    """`(batch, group size, version)`: the batch followed by groups of the buffer, none of which are
    its own; a buffer that has too few adds empty ones."""
    get_state: Callable[[], list[dict[str, np.ndarray]]]
    set_state: Callable[[list[dict[str, np.ndarray]]], None]


def replay(settings: ReplayConfig) -> Extension:
    """Groups of earlier steps are trained on again, with their recorded log-probabilities."""
    buffer: Buffer | None = None
    restored: list[dict[str, np.ndarray]] = []

    def check(config: Config) -> None:
        functions.resolve(settings.keep, settings.keep_args, _KEPT)
        functions.resolve(settings.choose, settings.choose_args, _CHOSEN)
        if not 0 < settings.groups <= settings.size:
            raise ValueError(
                f"replay.groups={settings.groups} with replay.size={settings.size}: use 1 or more "
                "groups, and a buffer that holds them"
            )
        tasks.require_sampling(config, "replay")
        require_before_critic(config, "replay")
        updates, prompts = config.updates_per_batch, config.rollout.prompts
        if settings.groups % updates:
            raise ValueError(
                f"updates_per_batch={updates} does not divide replay.groups={settings.groups}; "
                f"choose a divisor of it and of rollout.prompts={prompts}"
            )
        fixed = {"rollout.group_size", "rollout.temperature"} & {
            name for stage in config.stages.values() for name in stage
        }
        if fixed:
            raise ValueError(
                f"stages sets {min(fixed)!r} with the extension replay: groups of the buffer would "
                "not fit; remove one of them"
            )

    def prepare(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
        nonlocal buffer
        if buffer is None:
            buffer = open_buffer(settings, ctx.config.seed)
            buffer.set_state(restored)
        return buffer.mix(batch, ctx.config.rollout.group_size, int(state.step))

    def get_state() -> list[dict[str, np.ndarray]]:
        return restored if buffer is None else buffer.get_state()

    def set_state(state: list[dict[str, np.ndarray]]) -> None:
        nonlocal restored
        restored = state
        if buffer is not None:
            buffer.set_state(state)

    return Extension(check=check, prepare=prepare, get_state=get_state, set_state=set_state)


def open_buffer(config: ReplayConfig, seed: int) -> Buffer:
    """An empty buffer of up to `config.size` groups; the oldest are replaced first."""
    groups: list[dict[str, Any]] = []

    def mix(batch: Trajectory, size: int, version: int) -> Trajectory:
        nonlocal groups
        groups = [g for g in groups if not config.max_age or _age(g, version) <= config.max_age]
        replayed_groups = [groups[i] for i in _choose(config, groups, version, seed)]
        mixed = joined(batch, replayed_groups, config.groups, size)
        groups = (groups + _kept(config, batch, size))[-config.size :]
        return mixed

    def set_state(state: list[dict[str, np.ndarray]]) -> None:
        nonlocal groups
        groups = [{"trained": group["valid"]} | group for group in state]  # older runs have none

    return Buffer(mix, lambda: groups, set_state)


def _age(group: dict[str, np.ndarray], version: int) -> int:
    trained = group["action_mask"] & group["trained"][:, None]
    return version - int(group["policy_version"][trained].min())


def _choose(
    config: ReplayConfig, groups: list[dict[str, Any]], version: int, seed: int
) -> np.ndarray:
    choose = functions.resolve(config.choose, config.choose_args, _CHOSEN)
    arguments = {
        "ages": np.array([_age(g, version) for g in groups], np.int64),
        "rewards": np.array([g["rewards"] for g in groups]),
        "count": config.groups,
        "rng": np.random.default_rng([seed, version]),
    }
    return (
        functions.call(choose, config.choose_args, arguments) if groups else np.zeros(0, np.int64)
    )


def _kept(config: ReplayConfig, batch: Trajectory, size: int) -> list[dict[str, np.ndarray]]:
    """The groups of a batch with a reward of which something is kept."""
    keep = functions.resolve(config.keep, config.keep_args, _KEPT)
    groups = np.arange(len(batch.valid)).reshape(-1, size)
    groups = groups[batch.valid[groups].any(axis=1)]
    versions = np.where(batch.action_mask, batch.policy_version, np.iinfo(np.int32).max).min(axis=1)
    arguments = {
        "rewards": np.where(batch.valid, batch.rewards, np.nan)[groups],
        "lengths": batch.action_mask.sum(axis=1)[groups],
        "versions": versions[groups],
    }
    acted = batch.valid & batch.action_mask.any(axis=1)  # `corrector` may leave none
    trained = functions.call(keep, config.keep_args, arguments) & acted[groups]
    return [
        {name: array[rows] for name, array in batch.named().items()} | {"trained": mask}
        for rows, mask in zip(groups, trained, strict=True)
        if mask.any()
    ]


def empty(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """What pads an array of a batch: 0, but for `parent`, where 0 would be the first token.

    Args:
      name: see `Trajectory.named`.
      shape: [N, ...] of the array.
      dtype: of the array.
    """
    array = np.zeros(shape, dtype)
    if name == "parent":  # each token continues the one before
        array[:] = np.arange(-1, shape[1] - 1)
    return array


def joined(
    batch: Trajectory, groups: list[dict[str, np.ndarray]], wanted: int, size: int
) -> Trajectory:
    """A batch followed by other groups, and by empty ones, so that its shape is always the same.

    The groups that follow are an addition of their own, see `packing.shares`.

    Args:
      batch: groups of `size` rows.
      groups: at most `wanted`, arrays by name, `trained` among them; what one lacks is `empty`.
      wanted: how many groups follow the batch's own.
      size: rows of a group.
    """
    count, group_count = len(batch.tokens), len(batch.tokens) // size
    length = max([batch.tokens.shape[1], *(g["tokens"].shape[1] for g in groups)])
    fields: dict[str, np.ndarray] = {}
    arrays = batch.named() | {"trained": batch.learned}
    truncated = next((g["support"] for g in groups if "support" in g), None)
    if truncated is not None and "support" not in arrays:  # drawn by a run that is forked
        arrays["support"] = np.zeros((*batch.tokens.shape, truncated.shape[-1]), np.uint32)
    for name, array in arrays.items():
        shape = (count + wanted * size, *array.shape[1:])
        if array.shape[:2] == batch.tokens.shape:
            shape = (shape[0], length, *array.shape[2:])
        full_array = empty(name, shape, array.dtype)
        full_array[(slice(count), *(slice(n) for n in array.shape[1:]))] = array
        for i, group in enumerate(groups):
            if name in group:
                rows = slice(count + i * size, count + (i + 1) * size)
                full_array[(rows, *(slice(n) for n in group[name].shape[1:]))] = group[name]
        fields[name] = full_array
    fields["group_ids"] = np.repeat(np.arange(group_count + wanted, dtype=np.int32), size)
    extra = {name: fields.pop(name) for name in batch.extra}
    addition = batch.extra.get("addition", np.zeros(count, np.int32))
    added = np.full(wanted * size, np.max(addition, initial=0) + 1, np.int32)
    return Trajectory(**fields, extra=extra | {"addition": np.concatenate([addition, added])})
