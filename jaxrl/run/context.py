"""What the parts of a run share: its fixed surroundings, its callbacks, the
pools that score, and what each stage has.

Stages are those of `jaxrl.config.stages`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optax
from jax.sharding import Mesh

from jaxrl.config import Config, stages
from jaxrl.data.scoring.pool import Pool, open_pool
from jaxrl.data.types import Problem, Score, Task
from jaxrl.record import checkpoint
from jaxrl.record.metrics import Timer
from jaxrl.record.process import Gate, Heartbeat
from jaxrl.record.writer import Writer
from jaxrl.rollout import rollout_log, tasks
from jaxrl.rollout.experience import Collector, Experience, to_trajectory
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.rollout_log import HistoryLog
from jaxrl.run import guards, placement
from jaxrl.run.extension import Context, Extension, preparation, provider, teacher
from jaxrl.training.train_step import Update, make_update
from jaxrl.types import Packed, Params, TrainState, Trajectory


class Callbacks(NamedTuple):
    """Functions that a run calls. The defaults do nothing."""

    stage: Callable[[str, int, int], None] = lambda name, done, total: None
    """Called when a phase (warm start, train) has done `done` of its `total` steps."""
    imitated: Callable[[int, float], None] = lambda step, loss: None
    """Called with the loss of a step of the warm start, twenty times at most."""
    step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
    """Called after a training step, with its metrics."""
    sampled: Callable[[int, Experience], None] = lambda step, experience: None
    """Called with scored completions: of an evaluation after `step` steps, and of the batch of
    each step."""
    note: Callable[[str], None] = lambda text: None
    """Called with a message for the user."""
    scored: Callable[[Problem, str, Score], None] = lambda problem, completion, score: None
    """Called with each completion as soon as it is scored, in another thread; not with episodes."""


StageCollector = Collector[[TrainState, int, Timer]]
"""A collector whose step is given the train state, its step, and a timer."""
ToSampler = Callable[[Params], Params]
"""Trained parameters as the sampler reads them, on the devices that sample."""


class Origin(NamedTuple):
    """Where a run's experience comes from, and what it is measured on.

    It is sampled and scored, see `jaxrl.run.sampled`, or read from a file, see
    `jaxrl.run.offline`.
    """

    open: Callable[[RunContext, Context, ToSampler, HistoryLog, int], StageCollector]
    """The experience of a stage, from its start; the number is that of the steps done by then."""
    assess: Callable[[RunContext, Context, TrainState, ToSampler, int], dict[str, float]]
    """Held-out figures of a state at a step."""
    figure: str
    """Name of the main figure."""
    held_out: str
    """Name of what the figures are measured on."""
    task: Task | None = None
    """Makes and scores problems; None where nothing is scored."""


class RunContext(NamedTuple):
    """What a run works with and never changes."""

    config: Config
    callbacks: Callbacks
    directory: Path
    origin: Origin
    policy: Policy
    """The model's shape and tokenizer; its parameters are in the train state."""
    extensions: dict[str, Extension]
    """By name, in order."""
    pools: dict[int | None, Pool]
    """By the step that a stage begins after; None: scores evaluations. Empty where nothing is
    scored."""
    sampling_mesh: Mesh
    """The devices that sample; the mesh in use has those that train."""
    writer: Writer
    gate: Gate
    heart: Heartbeat
    closing: contextlib.ExitStack
    """Closed when the run ends, in whatever way."""
    sharing: placement.Sharing | None = None
    """With other runs of this process; None: with none."""


class Stage(NamedTuple):
    """What a run works with from one change of its config to the next."""

    ctx: Context
    collector: StageCollector
    to_trajectory: Callable[[Experience], Trajectory]
    prepare: Callable[[TrainState, Trajectory], Trajectory] | None
    """See `extension.preparation`."""
    teach: Callable[[Packed], Packed] | None
    """See `extension.teacher`."""
    update: Update
    record: rollout_log.Record


def open_stage(
    run: RunContext,
    ctx: Context,
    first: int,
    position: dict[str, Any] | None,
    recorder: HistoryLog,
    update: Update,
    to_sampler: ToSampler,
) -> Stage:
    """A stage, from its start or from a position.

    Args:
      run: the run.
      ctx: of the stage, see `context`.
      first: see `jaxrl.config.stages.first`.
      position: in its experience; None for the start.
      recorder: keeps the run's history.
      update: see `stage_update`; a stage that begins again has the same.
      to_sampler: see `reshard.sampler_weights`.
    """
    config = ctx.config
    collector = run.origin.open(run, ctx, to_sampler, recorder, first)
    if position is not None:
        with checkpoint.telling_damage(run.directory):
            collector.set_state(position)
    restriction = ctx.restriction if provider(run.extensions, "restriction") else None
    record = rollout_log.recorder(
        run.directory,
        config,
        run.policy.tokenizer.decode,
        placement.batch_score(ctx.score, config, restriction),
    )
    return Stage(
        ctx,
        collector,
        to_trajectory(config),
        preparation(ctx, run.extensions),
        teacher(ctx, run.extensions),
        update,
        record,
    )


def stage_update(
    ctx: Context, extensions: Mapping[str, Extension], optimize: optax.GradientTransformation
) -> Update:
    """One jitted update of all that the run carries, as its guards allow.

    Args:
      ctx: of the stage.
      extensions: of the run.
      optimize: see `train_step.make_update`.
    """
    config = ctx.config
    ascent = provider(extensions, "ascent")
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
        router=provider(extensions, "router"),
        ascent=ascent and functools.partial(ascent, ctx),
    )
    for extension in extensions.values():
        update = extension.update(ctx, update)
    return guards.guarded(update, config.guard)


@contextlib.contextmanager
def open_pools(config: Config, callbacks: Callbacks) -> Iterator[dict[int | None, Pool]]:
    """What scores the completions of each stage, by its `first`; None: those of evaluations.

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
        for first, staged in () if config.data.kinds else ((None, config), *stages.all_of(config)):
            task = tasks.of_config(staged)
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
