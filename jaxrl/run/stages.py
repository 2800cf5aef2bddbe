"""Stages: fields of the config that change at declared steps, as `Config.stages` says.

A change holds from a number of steps done until a later stage changes the field again: under
`{100: {"rollout.max_new_tokens": 128}, 200: {"task_args.digits": 3}}` step 101 is the first with
128 tokens, and step 201 the first of another difficulty. A stage at 0 holds from the first step on.
What an evaluation measures does not change: held-out problems and their budget are those of the
config itself. The sequence of prompts continues, unless the stage changes its source; then it
starts anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import optax

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import Config
from jaxrl.data.scoring.pool import Pool, open_pool
from jaxrl.data.selection import curriculum
from jaxrl.data.types import Problem, Score
from jaxrl.rollout import rollout_log, tasks
from jaxrl.rollout.history import Recorder
from jaxrl.run import guards, placement
from jaxrl.run.context import Batches, Callbacks, RunContext, ToSampler
from jaxrl.run.extension import Context, Extension, only
from jaxrl.training.train_step import Update, make_update
from jaxrl.types import TrainState

MAY_CHANGE = (
    "rollout.group_size", "rollout.max_prompt_tokens", "rollout.max_new_tokens",
    "rollout.turn_tokens", "rollout.long_prompts", "rollout.temperature", "rollout.oversampling",
    "rollout.chat", "rollout.system", "task", "task_args.", "domains.", "bandit.", "curriculum.",
)  # fmt: skip
"""Fields, or groups of fields, that a stage may set."""


class Stage(NamedTuple):
    """What a run works with from one change of its config to the next."""

    ctx: Context
    batches: Batches
    update: Update
    record: rollout_log.Record


def open_stage(
    run: RunContext,
    ctx: Context,
    start: int,
    position: dict[str, Any] | None,
    recorder: Recorder,
    optimize: optax.GradientTransformation,
    like: TrainState,
    to_sampler: ToSampler,
) -> Stage:
    """A stage, from its start or from a position.

    Args:
      run: the run.
      ctx: of the stage, see `context`.
      start: the steps done where it begins.
      position: in its experience; None for the start.
      recorder: keeps the run's history.
      optimize, like: see `train_step.make_update` and `placement.abstract_state`.
      to_sampler: see `reshard.sampler_weights`.
    """
    config = ctx.config
    batches = run.origin.open(run, ctx, to_sampler, recorder, start)
    if position is not None:
        batches.set_state(position)
    update = placement.settled(program(ctx, run.extensions, optimize), like)
    record = rollout_log.recorder(
        run.directory,
        config,
        run.policy.tokenizer.decode,
        lambda state, batch: ctx.score(
            state.params, placement.pack(batch, config)[0], ctx.restriction(state)
        ),
    )
    return Stage(ctx, batches, update, record)


def program(
    ctx: Context, extensions: Mapping[str, Extension], optimize: optax.GradientTransformation
) -> Update:
    """One jitted update of all that the run carries, as its guards allow.

    Args:
      ctx: of the stage.
      extensions: of the run.
      optimize: see `train_step.make_update`.
    """
    config = ctx.config
    ascent = only(extensions, "ascent")
    update = make_update(
        ctx.policy.model,
        config.objective,
        optimize,
        temperature=config.rollout.temperature,
        max_new_tokens=config.rollout.max_new_tokens,
        remat=config.remat,
        part=ctx.part,
        restriction=ctx.restriction,
        reading=ctx.reading,
        noise=config.data.noise,
        seed=config.seed,
        weights=bool(config.asynchronous.staleness),  # at 0, the program of the synchronous run
        router=only(extensions, "router"),
        ascent=ascent and functools.partial(ascent, ctx),
    )
    for extension in extensions.values():
        update = extension.update(ctx, update)
    return guards.guarded(update, config.guard)


@contextlib.contextmanager
def open_pools(config: Config, callbacks: Callbacks) -> Iterator[dict[int | None, Pool]]:
    """What scores the completions of each stage, by its start; None: those of evaluations.

    Where tasks are the same, a pool is shared. Rows of a file are not scored: there are no pools
    then. `callbacks.scored` is called with what is scored, and `note` with the first failure and
    with the sandbox of programs, where completions are programs.
    """
    pools: dict[int | None, Pool] = {}
    note, failed = callbacks.note, _first_failure(callbacks.note)

    def on_score(problem: Problem, completion: str, score: Score) -> None:
        failed(score)
        callbacks.scored(problem, completion, score)

    by_task: dict[str, Pool] = {}
    with contextlib.ExitStack() as stack:
        for first in () if config.data.kinds else (None, *sorted({0, *config.stages})):
            task = tasks.named(config if first is None else at(config, first))
            key = json.dumps([task.name, task.params], sort_keys=True)
            if key not in by_task:
                pool = open_pool(
                    task.name,
                    task.params,
                    workers=config.score_workers,
                    time_limit_s=config.score_seconds,
                    memory_limit_mb=config.score_memory_mb,
                    allow_weak=config.sandbox.allow_weak,
                    on_score=on_score,
                    ahead=not first,
                )
                if pool.isolation:
                    note(str(pool.isolation))
                by_task[key] = stack.enter_context(pool)
            pools[first] = by_task[key]
        yield pools


def _first_failure(note: Callable[[str], None]) -> Callable[[Score], None]:
    """Tells at once why the first score failed that did; later ones are counted only."""
    failed = threading.Event()

    def on_score(score: Score) -> None:
        if score.error is None or score.error.startswith("closed:") or failed.is_set():
            return
        failed.set()
        note(f"WARNING: a completion could not be scored: {score.error}")

    return on_score


def at(config: Config, done: int) -> Config:
    """The config in force after `done` steps.

    Raises:
      ValueError: a field that no stage may set, or that does not exist, or a value that it cannot
        have.
    """
    if not config.stages:
        return config
    schedule = sorted({0: {}, **config.stages}.items())
    for name, value in curriculum.stage_at(schedule, done).items():
        start = max(s for s, changes in schedule if s <= done and name in changes)
        config = _set(config, start, name, value)
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
        if not 0 <= start < config.steps:
            raise ValueError(
                f"stages has a stage at {start}: have it at 0 or more, below steps={config.steps}"
            )
    if config.stages and config.rollout.in_flight > 1:
        raise ValueError(
            f"stages with rollout.in_flight={config.rollout.in_flight}: unfinished groups would "
            "belong to two stages; set one of them aside"
        )
    for start in sorted(config.stages):
        staged = at(config, start)
        try:
            configs.check(staged)
        except ValueError as error:
            raise ValueError(f"stages.{start}: {error}") from error


def start(config: Config, done: int) -> int:
    """The first step of the stage in force after `done` steps."""
    return max(first for first in (0, *config.stages) if first <= done)


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
        hint, old = _field(config, name)
        if isinstance(hint, types.UnionType) and old is not None and _kind(value) != _kind(old):
            raise ValueError(f"{name}={value!r}: must be of the type of {old!r}")
        return configs.replaced(config, name, configs.checked(hint, value, name))
    except ValueError as error:
        raise ValueError(f"stages.{start}: {error}") from error


def _field(config: Config, name: str) -> tuple[Any, Any]:
    """The declared type of a dotted field, of entries of a dict too, and its value; None if unset.

    Raises:
      ValueError: no such field, or no such entry above it.
    """
    value: Any = config
    hint: Any = Config
    *groups, last = name.split(".")
    for depth, key in enumerate([*groups, last]):
        if typing.get_origin(hint) is dict:
            known = [last] if depth == len(groups) else list(value)
            _, hint = typing.get_args(hint)
        else:
            hints = typing.get_type_hints(hint) if dataclasses.is_dataclass(hint) else {}
            hint, known = hints.get(key), list(hints)
        if key not in known:
            raise ValueError(f"{name}: there is no field {key!r}; {functions.nearest(key, known)}")
        value = value.get(key) if isinstance(value, dict) else getattr(value, key)
    return hint, value


def _kind(value: Any) -> type:
    """The type of a value; integers and other numbers are of one."""
    return float if type(value) is int else type(value)
