"""What a run works with in one of its stages, see `jaxrl.config.stages`."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import optax

from jaxrl.config import Config, stages
from jaxrl.data.scoring.pool import Pool, open_pool
from jaxrl.data.types import Problem, Score
from jaxrl.rollout import rollout_log, tasks
from jaxrl.rollout.history import Recorder
from jaxrl.run import guards, placement
from jaxrl.run.context import Batches, Callbacks, RunContext, ToSampler
from jaxrl.run.extension import Context, Extension, provider
from jaxrl.training.train_step import Update, make_update


class Stage(NamedTuple):
    """What a run works with from one change of its config to the next."""

    ctx: Context
    batches: Batches
    update: Update
    record: rollout_log.Record


def open_stage(
    run: RunContext,
    ctx: Context,
    first: int,
    position: dict[str, Any] | None,
    recorder: Recorder,
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
      update: see `program`; a stage that begins again has the same.
      to_sampler: see `reshard.sampler_weights`.
    """
    config = ctx.config
    batches = run.origin.open(run, ctx, to_sampler, recorder, first)
    if position is not None:
        batches.set_state(position)
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
