"""The rollouts of an asynchronous run, and the schedule that it keeps, `RUN/schedule.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.config import AsynchronousConfig, Config
from jaxrl.data.scoring.pool import Pool
from jaxrl.data.selection import curriculum
from jaxrl.data.types import Task
from jaxrl.record import jsonl, storage
from jaxrl.record.metrics import Timer
from jaxrl.rollout import asynchronous, collect, schedule
from jaxrl.rollout.asynchronous import Batch, Live, Row, Sampling
from jaxrl.rollout.collect import Weights
from jaxrl.rollout.drive import Drive, Pending, RequestId
from jaxrl.rollout.engine import Open
from jaxrl.rollout.experience import Collector, Experience
from jaxrl.rollout.programs import Program
from jaxrl.rollout.selection import Source
from jaxrl.run.context import RunContext

FILE = "schedule.jsonl"
_WAYS = "live, lockstep:K with K of 0 or more, or recorded:RUN"


def limits(config: Config) -> schedule.Limits:
    """The limits of a run's schedule."""
    settings = config.asynchronous
    return schedule.Limits(
        config.rollout.prompts, settings.staleness, settings.in_flight, settings.order
    )


def check(config: Config) -> None:
    """Refuse settings of sampling during updates that cannot work.

    Raises:
      ValueError: naming the field.
    """
    settings = config.asynchronous
    if settings.staleness is None:
        if settings != AsynchronousConfig():
            raise ValueError(
                f"asynchronous={settings} without asynchronous.staleness is a synchronous run; set "
                "it to 0 or more"
            )
        return
    try:
        schedule.check(limits(config))
    except ValueError as error:
        raise ValueError(f"asynchronous.{error}") from error
    way, value = _way(settings)
    if way == "recorded" and not (storage.locate(value) / FILE).exists():
        raise ValueError(
            f"asynchronous.schedule={settings.schedule!r}: {value} has no {FILE}; name the "
            "directory of an asynchronous run"
        )
    if way != "live":
        return
    if jax.process_count() > 1:
        raise ValueError(
            "asynchronous.schedule='live' runs in one process; use lockstep:K with several"
        )
    if not (config.sampling.devices or config.generators) and jax.device_count() > 1:
        raise ValueError(
            f"asynchronous.schedule='live' with sampling.devices=0: two threads would share "
            f"{jax.device_count()} devices; give sampling some of them, or use lockstep:K"
        )


def _way(settings: AsynchronousConfig) -> tuple[str, str]:
    """The kind of a schedule, and what follows its colon.

    Raises:
      ValueError: neither is known.
    """
    way, _, value = settings.schedule.partition(":")
    fits = {"live": not value, "lockstep": value.isdigit(), "recorded": bool(value)}
    if not fits.get(way, False):
        raise ValueError(f"asynchronous.schedule={settings.schedule!r} is unknown; use {_WAYS}")
    return way, value


def open_rollouts(
    run: RunContext,
    config: Config,
    task: Task,
    pool: Pool,
    source: Source,
    program: Program,
    *,
    room: int,
    open_engine: Open,
) -> Collector[[Weights, Timer]]:
    """The experience of an asynchronous run, or of a stage of it.

    Args:
      run: the run.
      config, task, pool, source, program, room, open_engine: see `collect.open_rollouts`.
    """
    ctx = collect.context(config.rollout, config.seed, run.policy, task)

    def drive(weights: Weights, pending_answers: Mapping[RequestId, Pending | None]) -> Drive:
        setup = collect.sampler_setup(
            run.policy._replace(guide=weights.guide), config.rollout, config.sampler,
            collect.key(config.seed), room, **collect.turns_of(ctx),
            resumes=config.asynchronous.staleness != 0,
        )  # fmt: skip
        engine = open_engine(setup, weights.params)
        return Drive(program, ctx, engine, pool, pending_answers)

    record = jsonl.StepLog(run.directory / FILE, run.callbacks.note)
    together = config.asynchronous.staleness == 0 and config.rollout.replies == "together"
    quota = curriculum.quota(config.rollout.prompts, oversampling=config.rollout.oversampling)
    sampling = Sampling(
        limits(config), config.rollout.group_size, source, drive, record.add, together=together,
        spare=int(quota.budget - quota.wanted),
    )  # fmt: skip
    sample, halt = _sampler(run, config, sampling)
    run.closing.callback(halt)
    shared = not config.sampling.devices and not config.generators
    copied = shared and _way(config.asynchronous)[0] == "live"
    ended = busy = 0.0

    def step(weights: Weights, timer: Timer) -> tuple[Experience, dict[str, float]]:
        nonlocal ended, busy
        entered = perf_counter()
        if copied:  # the update donates its parameters, and some of these may be the same
            with timer("sync"):
                guide = weights.guide
                arrays = (weights.params, guide.params, guide.args)
                params, guide_params, args = jax.tree.map(jnp.copy, arrays)
                guide = guide._replace(params=guide_params, args=args)
                weights = weights._replace(params=params, guide=guide)
        record.begin(weights.step)
        with timer("sample"):
            batch = sample(weights)
        end_time = perf_counter()
        seconds = end_time - (ended or entered)
        metrics = {
            "prompts_sampled": float(batch.admitted),
            "idle/train": (end_time - entered) / seconds,
            "idle/sample": max(0.0, 1.0 - (sampling.busy_s - busy) / seconds),
        }
        if config.asynchronous.order == "finished":
            metrics["length_bias"] = batch.length_bias
        ended, busy = end_time, sampling.busy_s
        return collect.experience(batch.groups, config.rollout.group_size), metrics

    def get_state() -> dict[str, Any]:
        halt()
        return sampling.get_state()

    def abandon() -> None:
        halt()
        sampling.abandon()

    return Collector(step, get_state, sampling.set_state, abandon)


def _sampler(
    run: RunContext, config: Config, sampling: Sampling
) -> tuple[Callable[[Weights], Batch], Callable[[], None]]:
    """A function that samples a step, and one that stops sampling after the step's update."""
    way, value = _way(config.asynchronous)
    if way == "lockstep":
        chunks = int(value)
        return lambda weights: asynchronous.lockstep(sampling, weights, chunks), lambda: None
    if way == "recorded":
        rows = _by_step(storage.locate(value) / FILE)
        return (
            lambda weights: asynchronous.recorded(sampling, weights, rows.get(weights.step, [])),
            lambda: None,
        )
    live = Live(sampling, run.sampling_mesh, config.guard.stall_seconds)
    return live.step, live.halt


def _by_step(path: Path) -> dict[int, Sequence[Row]]:
    """The rows of a schedule, in order."""
    rows: dict[int, list[Row]] = {}
    for row in jsonl.read_whole(path):
        rows.setdefault(row["step"], []).append(row)
    return dict(rows)
