"""Stages: fields of the config that change at declared steps, as `Config.stages` says.

A change holds from a number of steps done until a later stage changes the field again: under
`{100: {"rollout.max_new_tokens": 128}, 200: {"task_args.digits": 3}}` step 101 is the first with
128 tokens, and step 201 the first of another difficulty. A stage at 0 holds from the first step on.

A stage with a `period` begins again every so many steps, so that two stages alternate: under
`{20: {"objective.policy": "online_dpo", "period": 20}, 25: {"objective.policy": "ppo_clip",
"period": 20}}` five steps of every 20 are of DPO, the first 20 excepted. A stage that names a
function of the objective begins with the arguments that it gives itself, as those of the function
before are of another.

What an evaluation measures does not change: held-out problems and their budget are those of the
config itself. The sequence of prompts continues, unless the stage changes its source; then it
starts anew.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl.config import fields, validate
from jaxrl.config.schema import Config

MAY_CHANGE = (
    "rollout.group_size", "rollout.max_prompt_tokens", "rollout.max_new_tokens",
    "rollout.turn_tokens", "rollout.max_turns", "rollout.long_prompts", "rollout.temperature",
    "rollout.oversampling", "rollout.chat", "rollout.system", "task", "task_args.", "domains.",
    "bandit.", "curriculum.", "objective.",
)  # fmt: skip
"""Fields, or groups of fields, that a stage may set."""
PERIOD = "period"
"""Beside the fields of a stage: the number of steps after which it begins again."""
MOST_STARTS = 100_000
"""Times that a stage with a period may begin, each of which is listed before the run."""
_FUNCTIONS = ("objective.policy", "objective.shaping", "objective.advantage", "objective.rows")
"""Fields that name functions, whose arguments are in a field of their own."""


def begun_stages(config: Config, done: int) -> list[tuple[int, int]]:
    """The stages that have begun after `done` steps, in the order in which they take effect.

    Returns:
      The step that each began at last, and its key in `config.stages`, rising.
    """
    periods = {key: _period(changes) for key, changes in config.stages.items() if key <= done}
    return sorted(
        (key + (done - key) // period * period if period else key, key)
        for key, period in periods.items()
    )


def at(config: Config, done: int) -> Config:
    """The config in force after `done` steps.

    Raises:
      ValueError: a field that no stage may set, or that does not exist, or a value that it cannot
        have.
    """
    for _, key in begun_stages(config, done):
        changes = {k: v for k, v in config.stages[key].items() if k != PERIOD}
        for name in changes:
            if name in _FUNCTIONS:
                config = fields.replaced(config, f"{name}_args", {})
        for name, value in changes.items():
            config = _set(config, key, name, value)
    return config


def all_of(config: Config) -> Iterator[tuple[int, Config]]:
    """The number of steps done where a config is first in force, and the config; from 0 on."""
    orders, configs = set[tuple[int, ...]](), list[Config]()
    for done in starts(config):
        if (order := _order(config, done)) in orders:
            continue
        orders.add(order)
        if (staged := at(config, done)) not in configs:
            configs.append(staged)
            yield done, staged


def starts(config: Config) -> list[int]:
    """The numbers of steps done where a stage begins, also where it begins again; 0 is one."""
    steps = {0}
    for key, changes in config.stages.items():
        period = _period(changes)
        steps |= set(range(key, config.steps, period)) if period else {key}
    return sorted(steps)


def check(config: Config) -> None:
    """Refuse stages that no step would reach, or that set what cannot change.

    Raises:
      ValueError: naming the stage and the field.
    """
    for start in config.stages:
        if not 0 <= start < config.steps:
            raise ValueError(
                f"stages has a stage at {start}: have it at 0 or more, below steps={config.steps}"
            )
    for key, changes in config.stages.items():
        period = changes.get(PERIOD, 1)
        if type(period) is not int or period < 1:
            raise ValueError(
                f"stages.{key}: period={period!r}: must be a number of steps, 1 or more"
            )
        if (count := (config.steps - 1 - key) // period) > MOST_STARTS and PERIOD in changes:
            raise ValueError(
                f"stages.{key}: period={period} with steps={config.steps}: the stage would begin "
                f"{count + 1} times, and may {MOST_STARTS}; have a longer period or fewer steps"
            )
    for done, staged in all_of(config):
        with of_stage(config, done):
            validate.check(staged)


@contextlib.contextmanager
def of_stage(config: Config, done: int) -> Iterator[None]:
    """Names the stage in force after `done` steps, if there is one, in a ValueError within."""
    try:
        yield
    except ValueError as error:
        if not (order := _order(config, done)):
            raise
        raise ValueError(f"stages.{order[-1]}: {error}") from error


def first(config: Config, done: int) -> int:
    """The number of steps done where the config in force after `done` steps was so first.

    It differs from the last of `starts` where stages have a period.
    """
    staged = at(config, done)
    return next(step for step, config_there in all_of(config) if config_there == staged)


def _order(config: Config, done: int) -> tuple[int, ...]:
    """Keys of the stages in force after `done` steps, the last one to begin last."""
    return tuple(key for _, key in begun_stages(config, done))


def _period(changes: Mapping[str, Any]) -> int:
    """Steps after which a stage begins again; 0: it does not."""
    return int(changes.get(PERIOD, 0))


def _set(config: Config, start: int, name: str, value: Any) -> Config:
    """The config with a field of it set by the stage at `start`, checked as a field of a file is.

    Raises:
      ValueError: naming the stage, the field and the value.
    """
    if not any(name == m or (m[-1] == "." and name.startswith(m)) for m in MAY_CHANGE):
        raise ValueError(
            f"stages.{start} sets {name!r}, which is the same for a whole run; a stage may set "
            f"{', '.join(m.rstrip('.') for m in MAY_CHANGE)}; to change another field, end the "
            "run and continue from it with --fork"
        )
    try:
        hint, old = fields.field_of(config, name)
        if isinstance(hint, types.UnionType) and old is not None and _kind(value) != _kind(old):
            raise ValueError(f"{name}={value!r}: must be of the type of {old!r}")
        return fields.replaced(config, name, value)
    except ValueError as error:
        raise ValueError(f"stages.{start}: {error}") from error


def _kind(value: Any) -> type:
    """The type of a value; integers and other numbers are of one."""
    return float if type(value) is int else type(value)
