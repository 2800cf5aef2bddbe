"""Stages: fields of the config that change at declared steps, as `Config.stages` says.

A change holds from a number of steps done until a later stage changes the field again: under
`{100: {"rollout.max_new_tokens": 128}, 200: {"task_args.digits": 3}}` step 101 is the first with
128 tokens, and step 201 the first of another difficulty. What an evaluation measures does not
change: held-out problems and their budget are those of the config itself. Prompts go on where they
stood, unless the stage changes what they are drawn from; then they begin there.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import optax

from data import curriculum
from data.scoring import Pool, open_pool
from jaxrl import (
    average,
    critic,
    guards,
    kl_control,
    nucleus,
    placement,
    rollout_log,
    selection,
    tasks,
)
from jaxrl import config as configs
from jaxrl.config import Config
from jaxrl.gather import Gather, open_gather
from jaxrl.history import Recorder
from jaxrl.train_step import Update, make_score, make_update
from jaxrl.trainable import Part
from jaxrl.types import TrainState
from jaxrl.workshop import Workshop

MAY_CHANGE = (
    "rollout.group_size", "rollout.max_prompt_tokens", "rollout.max_new_tokens",
    "rollout.long_prompts", "rollout.temperature", "rollout.oversampling", "rollout.chat",
    "rollout.system", "task", "task_args.", "domains.", "bandit.", "curriculum.",
)  # fmt: skip
"""Fields, or groups of fields, that a stage may set."""


class Stage(NamedTuple):
    """What a run works with from one change of its config to the next."""

    experiences: Gather
    update: Update
    score: Callable[..., jax.Array]
    """See `make_score`."""
    record: rollout_log.Record


def open_stage(
    shop: Workshop,
    done: int,
    position: dict[str, Any] | None,
    recorder: Recorder,
    optimize: optax.GradientTransformation,
    trained: Part,
    like: TrainState,
) -> Stage:
    """The stage after so many steps.

    Args:
      shop: of the run.
      done: steps done.
      position: of the prompts; None for their start.
      recorder: keeps the run's history.
      optimize, trained, like: see `train_step.make_update` and `placement.abstract_state`.
    """
    config, actor, pool = at(shop.config, done), shop.actor, shop.pools[start(shop.config, done)]
    settings, task = config.rollout, tasks.named(config)
    source = selection.recorded(selection.open_source(config, task, actor), recorder)
    here = shop._replace(config=config, task=task, pools={0: pool})
    experiences = open_gather(here, source, _stride(shop.config))
    if position is not None:
        experiences.set_state(position)
    score = make_score(actor.model, temperature=settings.temperature)
    update = make_update(
        actor.model,
        config.objective,
        optimize,
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
        remat=config.remat,
        part=trained,
        mask=config.nucleus,
    )
    updates = config.steps * config.updates_per_batch
    update = critic.beside(update, config.critic, actor.model, updates, config.remat)
    update = average.beside(kl_control.beside(update, config), config.average, trained)
    update = placement.settled(guards.guarded(update, config.guard), like)
    record = rollout_log.recorder(
        shop.directory,
        config,
        actor.tokenizer.decode,
        lambda state, batch: score(
            state.params,
            placement.pack(batch, config)[0],
            nucleus.of(config.nucleus, trained, state),
        ),
    )
    return Stage(experiences, update, score, record)


@contextlib.contextmanager
def open_pools(config: Config) -> Iterator[dict[int, Pool]]:
    """What scores the completions of each stage, by its start; stages of one task share a pool."""
    pools: dict[int, Pool] = {}
    by_task: dict[str, Pool] = {}
    with contextlib.ExitStack() as stack:
        for first in sorted({0, *config.stages}):
            task = tasks.named(at(config, first))
            key = json.dumps([task.name, task.params], sort_keys=True)
            if key not in by_task:
                pool = open_pool(
                    task.name,
                    task.params,
                    workers=config.score_workers,
                    time_limit_s=config.score_seconds,
                )
                by_task[key] = stack.enter_context(pool)
            pools[first] = by_task[key]
        yield pools


def at(config: Config, done: int) -> Config:
    """The config in force after so many steps are done.

    Raises:
      ValueError: a field that no stage may set, or that does not exist.
    """
    if not config.stages:
        return config
    schedule = sorted({0: {}, **config.stages}.items())
    for name, value in curriculum.stage_at(schedule, done).items():
        config = _set(config, name, value)
    return config


def all_of(config: Config) -> Iterator[Config]:
    """The config of each stage, the first being that before any."""
    for start in sorted({0, *config.stages}):
        yield at(config, start)


def check(config: Config) -> None:
    """Refuse stages that no step would reach, or that set what cannot change.

    Raises:
      ValueError: naming the stage and the field.
    """
    for start in config.stages:
        if not 0 < start < config.steps:
            raise ValueError(
                f"stages has a stage at {start}: it must lie between 0 and steps={config.steps}"
            )
    if config.stages and config.rollout.in_flight > 1:
        raise ValueError(
            f"stages with rollout.in_flight={config.rollout.in_flight}: groups under way would "
            "belong to two stages; set one of them aside"
        )
    fixed = {"rollout.group_size", "rollout.temperature"} & {
        k for s in config.stages.values() for k in s
    }
    if config.replay.groups and fixed:
        raise ValueError(
            f"stages sets {min(fixed)!r} with replay.groups={config.replay.groups}: groups of the "
            "buffer would not fit; set one of them aside"
        )
    for staged in all_of(config):
        configs.check(staged)


def start(config: Config, done: int) -> int:
    """Where the stage that holds after so many steps began."""
    return max(first for first in (0, *config.stages) if first <= done)


def _stride(config: Config) -> int:
    """Most completions that any step samples: the ids of two steps never meet."""
    return max(
        math.ceil(s.rollout.oversampling) * s.rollout.prompts * s.rollout.group_size
        for s in all_of(config)
    )


def _set(config: Config, name: str, value: Any) -> Config:
    if not any(name == m or (m[-1] == "." and name.startswith(m)) for m in MAY_CHANGE):
        raise ValueError(
            f"stages sets {name!r}, which is the same for a whole run; a stage may set "
            f"{', '.join(m.rstrip('.') for m in MAY_CHANGE)}; to change another field, end the "
            "run and go on from it with --fork"
        )
    old: Any = config
    for key in name.split("."):
        old = old.get(key) if isinstance(old, dict) else getattr(old, key, None)
    fits = (
        isinstance(value, int | float)
        if type(old) in (int, float)
        else isinstance(value, type(old))
    )
    if old is not None and (not fits or isinstance(value, bool) != isinstance(old, bool)):
        raise ValueError(f"stages sets {name}={value!r}; it must be of the type of {old!r}")
    return configs.replaced(config, name, value)
