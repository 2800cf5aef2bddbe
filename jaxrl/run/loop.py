"""The training loop: experience, rewards, updates, metrics, checkpoint; then again.

`train` reads top to bottom. All that a run carries is `TrainState` on the mesh and a small `host`
dict; a checkpoint holds both, so the same call in the same directory continues the run, bit for
bit, wherever it was interrupted. What a method adds is in its extensions, see
`jaxrl.run.extension`.

Nothing is copied between host and devices implicitly (`jax.transfer_guard`), except inside
`transfers()`. After its updates a step fetches once: all updates are dispatched first, and the host
does meanwhile what needs none of their results. The next step is dispatched after that fetch, since
its sampling needs the new weights anyway, and since `guard.*=stop` promises the state before the
bad update, which a further update would have replaced.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np

from jaxrl.config import Config, stages
from jaxrl.mesh import distributed
from jaxrl.record import checkpoint, rundir, trackers, usage
from jaxrl.record.heartbeat import Heartbeat
from jaxrl.record.metrics import MetricsLog, Timer
from jaxrl.record.rundir import best_effort, run_directory
from jaxrl.record.writer import Writer
from jaxrl.rollout import experience, history, reshard
from jaxrl.rollout.policy import Policy
from jaxrl.run import course, garbage, guards, placement, prepare, signals
from jaxrl.run import stage as run_stage
from jaxrl.run.begin import begin, check
from jaxrl.run.context import Callbacks, Origin, RunContext
from jaxrl.run.extension import Context, Extension, completion, only, taught
from jaxrl.run.extension import context as extension_context
from jaxrl.run.guards import Trip
from jaxrl.run.reference import Reference
from jaxrl.run.reference_cache import reference_logp
from jaxrl.run.stage import Stage
from jaxrl.training import objective, optimizer, packing, trainable
from jaxrl.training.train_step import Update
from jaxrl.types import TrainState, Trajectory

__all__ = ["Callbacks", "run_directory", "train"]
_PROGRAMS = 4
"""Programs of updates that are kept for stages that begin again."""


def transfers() -> contextlib.AbstractContextManager[None]:
    """Allows implicit copies between host and devices, in this thread."""
    return jax.transfer_guard("allow")


def train(config: Config, callbacks: Callbacks = Callbacks()) -> dict[str, Any]:
    """Run a config from its start, or from its newest checkpoint, to its last step.

    Returns:
      What is written to `summary.json`.

    Raises:
      ValueError: a config that cannot work; nothing has been compiled or written yet.
      BlockingIOError: another process is running in this directory.
      signals.Stop: SIGTERM or Ctrl-C; the state is saved. Uncaught, it exits with code 75.
      guards.Stopped: a guard whose action is to stop. The step before is saved, unless other
        updates of the same batch were applied; then the newest checkpoint is an earlier one.
      OSError: the last step could not be saved.
    """
    start = perf_counter()
    course.check(config)
    checked = None if config.course else check(config)
    callbacks = callbacks if distributed.first() else Callbacks()
    place = rundir.prepare(config, callbacks.note)
    with rundir.locked(place.directory), rundir.discarding(place):
        last = course.followed(config, place.directory, callbacks, train)
        return _train(config, last, checked or check(last), place.directory, callbacks, start)


def _train(
    whole: Config,
    config: Config,
    checked: tuple[Origin, Policy, dict[str, Extension]],
    directory: Path,
    callbacks: Callbacks,
    start: float,
) -> dict[str, Any]:
    """Train in a directory that this process has locked; of a course, the last stage.

    Args:
      whole: the config that is saved.
      config: the same, or the last stage of a course.
      checked: from `check`.
      directory: of the run.
      callbacks: of the run.
      start: when the run began, of `perf_counter`.
    """
    origin, policy, extensions = checked
    training_mesh, sampling_mesh = reshard.meshes(config.mesh, config.sampling)
    with (
        signals.stoppable(config.checkpoint.grace_seconds, callbacks.note) as gate,
        Heartbeat(directory, config.guard.stall_seconds, callbacks.note) as heart,
        jax.set_mesh(training_mesh),
        run_stage.open_pools(config, callbacks) as pools,
    ):
        rundir.save_config(directory, whole)
        checkpoint.set_aside(directory, after=checkpoint.newest(directory, callbacks.note))
        with (
            Writer(directory, config.checkpoint, callbacks.note) as writer,
            distributed.together(),
            usage.counted() as used,
            garbage.exempting() as exempt,
            contextlib.ExitStack() as closing,
        ):
            run = RunContext(
                config, callbacks, directory, origin, policy, extensions, pools, sampling_mesh,
                writer, gate, heart, closing,
            )  # fmt: skip
            with jax.transfer_guard("disallow"):
                return _run(run, start, used, exempt)


def _run(
    run: RunContext,
    start: float,
    used: Callable[[], dict[str, float]],
    exempt: Callable[[float], None],
) -> dict[str, Any]:
    config, model, writer, note = run.config, run.policy.model, run.writer, run.callbacks.note
    extensions = run.extensions.values()
    updates = config.steps * config.updates_per_batch
    optimize = optimizer.make(config.optimizer, updates, model)
    learning_rate = optimizer.learning_rate(config.optimizer, updates)
    part = trainable.part(model, config.lora, config.train)
    reference = Reference(run.directory, config, model, run.extensions)

    def context(done: int) -> Context:
        staged = stages.at(config, done)
        return extension_context(
            staged,
            run.policy,
            part,
            run.extensions,
            directory=run.directory,
            reference=reference.params if reference.reads(staged) else None,
            renew_reference=lambda state, step: reference.renew(like, state, step),
        )

    complete = completion(context(0), run.extensions)
    like = placement.abstract_state(
        model, optimize, config.lora, part, complete, offload=config.optimizer.offload
    )
    to_sampler = reshard.sampler_weights(
        model, jax.sharding.get_mesh(), run.sampling_mesh, config.compute_dtype
    )
    sampling = config.sampling
    to_rollouts = reshard.sampler_weights(
        model, jax.sharding.get_mesh(), run.sampling_mesh, sampling.dtype or config.compute_dtype,
        int8=sampling.weights == "int8",
    )  # fmt: skip
    evaluated = only(run.extensions, "evaluated")

    @functools.lru_cache(maxsize=_PROGRAMS)
    def program(first: int) -> Update:
        return placement.settled(run_stage.program(context(first), run.extensions, optimize), like)

    def assess(state: TrainState, step: int) -> dict[str, float]:
        run.heart.beat("evaluate", step)
        ctx = context(0)
        with transfers():
            shown = state.replace(params=evaluated(ctx, state)) if evaluated else state
            return run.origin.assess(run, ctx, shown, to_sampler, step)

    with transfers():
        _, state, host = begin(run, optimize, like, assess, part, complete)
        set_host_state(run, host)
        reference.load(like, host["step"])
    version = int(jax.device_get(state.step))
    begun = host["lineage"][-1]["step"] if host["lineage"] else 0
    recorder = history.Recorder(run.directory, note, forked=bool(host["lineage"]))
    stage: Stage | None = None
    stage_start = -1
    already = host["seconds"]

    wanted = trackers.wanted(config)
    log = MetricsLog(run.directory, host["step"], note, wanted, start=begun)
    timer, tripped, began = Timer(), list[Trip](), perf_counter()
    try:
        while host["step"] < config.steps:
            run.gate.check()
            step = host["step"] + 1
            if stage is None or stage_start != stages.start(config, host["step"]):
                stage_start = stages.start(config, host["step"])
                first = stages.first(config, stage_start)
                ctx = context(first)
                with transfers():
                    stage = run_stage.open_stage(
                        run, ctx, first, host["rollouts"], recorder, program(first), to_rollouts
                    )
            run.heart.beat("sample", step)
            with transfers():
                gathered, found = stage.batches.step(state, version, timer)

            with run.gate.closed():  # from here a signal waits for the end of the step
                run.heart.beat("train", step)
                with timer("score"), transfers():
                    scored = gathered
                    for extension in extensions:
                        gathered = extension.reward(ctx, state, gathered)
                    gathered = experience.reconcile_turn_rewards(scored, gathered)
                if step == 1:
                    guards.check_scores(gathered.scores, "the first batch")
                with timer("train"):
                    with transfers():
                        batch = experience.as_trajectory(gathered, ctx.config)
                        batch = prepare.prepared(ctx, extensions, state, batch)
                    state, measured, cost = update(stage, extensions, state, batch, version)
                    # while the devices compute
                    metrics = experience.measure(gathered) | found | cost
                    measured, version, done = jax.device_get(
                        (measured, state.step, optimizer.applied(state.opt_state))
                    )
                version = int(version)
                metrics = combine(measured) | metrics | used()
                with transfers():
                    metrics["learning_rate"] = float(learning_rate(max(int(done) - 1, 0)))

                before, tripped = tripped, guards.trips(config.guard, metrics)
                if tripped:
                    guards.report(run.directory, step, tripped, before, batch, metrics, note)
                action = guards.decide(config.guard, tripped, host["rollbacks"])
                if action == "stop":
                    if metrics["skipped"] == 1:  # every update of the step was refused
                        count = config.updates_per_batch
                        with transfers(), best_effort("the checkpoint", note):
                            refused = state.replace(step=state.step - count)
                            writer.save_now(host["step"], refused, host)
                    raise guards.Stopped(guards.explain(run.directory, step, tripped))
                if action == "rollback":
                    with transfers():
                        saved = checkpoint.restore(run.directory, writer.settle(), like)
                        reference.load(like, saved.step)
                    version = int(jax.device_get(saved.state.step))
                    state, rollbacks = saved.state, host["rollbacks"] + 1
                    stage.batches.abandon()
                    # the position of now, as the prompts after the checkpoint led here
                    position = stage.batches.get_state()
                    host = saved.host | {"rollouts": position, "rollbacks": rollbacks}
                    set_host_state(run, host)
                    log.close()
                    log = MetricsLog(run.directory, saved.step, note, wanted, start=begun)
                    note(f"rolled back from step {step} to {saved.step}, on with other prompts")
                    continue

                with timer("record"), transfers(), best_effort("the rollouts", note):
                    stage.record(step, gathered, batch, state)
                with transfers():
                    for extension in extensions:
                        state = extension.after(ctx, state, step)
                host = host | {
                    "step": step,
                    "tokens": host["tokens"] + metrics["tokens"],
                    "rollouts": stage.batches.get_state(),
                    "extensions": {name: e.get_state() for name, e in run.extensions.items()},
                    "seconds": already + perf_counter() - start,
                }
                if config.eval.every and step % config.eval.every == 0 and step < config.steps:
                    with timer("eval"):
                        figures = assess(state, step)
                    metrics |= {f"eval/{name}": value for name, value in figures.items()}
                now = perf_counter()
                metrics |= timer.take() | {"time/step": now - began}
                began = now
                log.write(step, metrics)  # before the save: a checkpoint's rows are on disk
                if wanted and (step == 1 or step % config.track.every == 0):
                    log.table(step, experience.table(gathered, config.track.completions))
                if writer.due(step) or step in config.stages:
                    with timer("save"), transfers():
                        writer.save(step, state, host, metrics.get(config.checkpoint.best))
                run.callbacks.sampled(step, gathered)
                run.callbacks.step(step, metrics)
                run.callbacks.stage("train", step, config.steps)
                exempt(metrics["compilations"])
        with transfers():
            writer.save_now(host["step"], state, host)
    except signals.Stop as stop:
        save_stopped(run, stop, state, host)
        raise

    after = assess(state, host["step"])
    log.close()
    summary = {
        "recipe": config.recipe,
        "seed": config.seed,
        "steps": host["step"],
        "seconds": already + perf_counter() - start,
        "tokens": host["tokens"],
        "rollbacks": host["rollbacks"],
        "lineage": host["lineage"],
        "failed_saves": writer.failures,
        "extensions": list(run.extensions),
        "eval": {"before": host["before"], "after": after},
        **course.summary(run.directory),
        **rundir.environment(),
    }
    rundir.save_summary(run.directory, summary)
    return summary


def update(
    stage: Stage,
    extensions: Collection[Extension],
    state: TrainState,
    batch: Trajectory,
    version: int,
) -> tuple[TrainState, list[dict[str, jax.Array]], dict[str, float]]:
    """Dispatch the step's updates, one for each share of the batch; nothing is fetched.

    Args:
      stage: of the run.
      extensions: of the run.
      state: before the updates.
      batch: N sequences on the host.
      version: `state.step`.

    Returns:
      The state, the metrics of each update, and what packing cost.
    """
    config, measured = stage.ctx.config, []
    for i, part in enumerate(packing.shares(batch, config.updates_per_batch)):
        with transfers():
            keep = objective.worth_computing(
                config.objective, part, version + i, state.coefficients
            )
        packed, cost = placement.pack(part, config, keep)
        with transfers():
            packed = taught(stage.ctx, extensions, packed)
        with transfers():
            ref_logp = reference_logp(stage.ctx, state, part, packed)
        state, metrics = stage.update(state, part, packed, ref_logp)
        measured.append(metrics)
    return state, measured, cost


def set_host_state(run: RunContext, host: dict[str, Any]) -> None:
    """Give every extension its state on the host back."""
    for name, extension in run.extensions.items():
        if name in host["extensions"]:
            extension.set_state(host["extensions"][name])


def save_stopped(
    run: RunContext, stop: signals.Stop, state: TrainState, host: dict[str, Any]
) -> None:
    """Save the last whole step of a run that was asked to stop, and choose its exit code."""
    try:
        with transfers():
            run.writer.save_now(host["step"], state, host)
        run.callbacks.note(f"step {host['step']} is saved; the same command continues")
    except OSError as error:
        stop.code = signals.UNSAVED
        run.callbacks.note(f"WARNING: {error}")


def combine(measured: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Means over a step's updates, and the greatest lag.

    The sampler's gap is taken at the first update, before any.
    """
    out = {k: float(np.mean([m[k] for m in measured])) for k in measured[0]}
    out["lag/max"] = float(max(m["lag/max"] for m in measured))
    return out | {k: float(measured[0][k]) for k in ("logp_gap", "logp_gap_max")}
