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

import bisect
import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import jax

from jaxrl.config import Config, stages
from jaxrl.mesh import distributed
from jaxrl.record import checkpoint, process, rundir, trackers
from jaxrl.record.metrics import MetricsLog, Timer
from jaxrl.record.process import Heartbeat
from jaxrl.record.rundir import run_directory
from jaxrl.record.storage import best_effort
from jaxrl.record.writer import Writer
from jaxrl.rollout import experience, reshard
from jaxrl.run import assemble, course, guards
from jaxrl.run.assemble import Parts
from jaxrl.run.context import Callbacks, RunContext, Stage, open_pools
from jaxrl.run.guards import Trip
from jaxrl.run.placement import Sharing, transfers
from jaxrl.run.step import step as train_step
from jaxrl.types import TrainState

__all__ = ["Callbacks", "run_directory", "train"]


def train(
    config: Config,
    callbacks: Callbacks = Callbacks(),
    *,
    trust: bool = False,
    sharing: Sharing | None = None,
) -> dict[str, Any]:
    """Run a config from its start, or from its newest checkpoint, to its last step.

    Args:
      config: of the run.
      callbacks: told of its progress.
      trust: links in the run directory may lead out of it, as one to a larger disk does.
      sharing: with other runs of this process, which train adapters of the same base; `config` is
        then without a course.

    Returns:
      What is written to `summary.json`.

    Raises:
      ValueError: a config that cannot work; nothing has been compiled or written yet.
      BlockingIOError: another process is running in this directory.
      process.Stop: SIGTERM or Ctrl-C; the state is saved. Uncaught, it exits with code 75.
      guards.Stopped: a guard whose action is to stop. The step before is saved, unless other
        updates of the same batch were applied; then the newest checkpoint is an earlier one.
      OSError: the last step could not be saved.
    """
    start = perf_counter()
    with distributed.exit_together():
        rundir.require_one(config)
        course.check(config)
        parts = None if config.course else assemble.assemble(config)
        callbacks = callbacks if distributed.first() else Callbacks()
        place = rundir.prepare(config, callbacks.note)
        with rundir.locked(place.directory, trust=trust), rundir.discarding(place):
            stage = functools.partial(train, trust=trust)
            last = course.followed(config, place.directory, callbacks, stage)
            return _train(
                config,
                last,
                parts or assemble.assemble(last),
                place.directory,
                callbacks,
                start,
                sharing,
            )


def _train(
    saved_config: Config,
    config: Config,
    parts: Parts,
    directory: Path,
    callbacks: Callbacks,
    start: float,
    sharing: Sharing | None,
) -> dict[str, Any]:
    """Train in a directory that this process has locked; of a course, the last stage.

    Args:
      saved_config: the config that the directory keeps.
      config: the same, or the last stage of a course.
      parts: of the run.
      directory: of the run.
      callbacks: of the run.
      start: when the run began, of `perf_counter`.
      sharing: see `train`.
    """
    training_mesh, sampling_mesh = reshard.meshes(config.mesh, config.sampling)
    with (
        process.stoppable(config.checkpoint.grace_seconds, callbacks.note) as gate,
        Heartbeat(directory, config.guard.stall_seconds, callbacks.note) as heart,
        jax.set_mesh(training_mesh),
        open_pools(config, callbacks) as pools,
    ):
        rundir.save_config(directory, saved_config)
        checkpoint.set_aside(directory, after=checkpoint.newest(directory, callbacks.note))
        with (
            Writer(directory, config.checkpoint, callbacks.note) as writer,
            distributed.exit_together(),
            process.count_compilations() as used,
            process.exempting() as exempt,
            contextlib.ExitStack() as closing,
        ):
            actor = parts.policy
            if not config.data.kinds:
                draft = reshard.open_draft(
                    config.sampler, actor.model, actor.tokenizer, sampling_mesh
                )
                parts = parts._replace(policy=actor._replace(draft=draft))
            run = RunContext(
                config, callbacks, directory, *parts, pools, sampling_mesh, writer, gate, heart,
                closing, sharing,
            )  # fmt: skip
            with jax.transfer_guard("disallow"):
                return _run(run, start, used, exempt)


def _run(
    run: RunContext,
    start: float,
    used: Callable[[], dict[str, float]],
    exempt: Callable[[float], None],
) -> dict[str, Any]:
    config, writer, note = run.config, run.writer, run.callbacks.note
    machine = assemble.machine(run)
    with transfers():
        _, state, host = machine.begin()
        with checkpoint.telling_damage(run.directory):
            set_host_state(run, host)
    version = int(jax.device_get(state.step))
    fork_step = host["lineage"][-1]["step"] if host["lineage"] else 0
    current: Stage | None = None
    starts, stage_start = stages.starts(config), -1
    already = host["seconds"]

    makers = trackers.openers(config)
    log = MetricsLog(run.directory, host["step"], note, makers, start=fork_step)
    timer, tripped, began = Timer(), list[Trip](), perf_counter()
    try:
        while host["step"] < config.steps:
            run.gate.check()
            step = host["step"] + 1
            start_now = starts[bisect.bisect(starts, host["step"]) - 1]
            if current is None or stage_start != start_now:
                stage_start = start_now
                with transfers():
                    current = machine.open_stage(stage_start, host["rollouts"])
            ctx = current.ctx
            with contextlib.ExitStack() as training:
                result = train_step(run, current, state, version, step, timer, training)
                state, version, batch = result.state, result.version, result.batch
                metrics = result.metrics | used()
                with transfers():
                    metrics["learning_rate"] = float(
                        machine.learning_rate(max(result.applied - 1, 0))
                    )

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
                        saved = checkpoint.restore(run.directory, writer.settle(), machine.like)
                        machine.reference.load(machine.like, saved.step)
                    version = int(jax.device_get(saved.state.step))
                    state, rollbacks = saved.state, host["rollbacks"] + 1
                    current.collector.abandon()
                    # the position of now, as the prompts after the checkpoint led here
                    position = current.collector.get_state()
                    host = saved.host | {"rollouts": position, "rollbacks": rollbacks}
                    set_host_state(run, host)
                    log.close()
                    log = MetricsLog(run.directory, saved.step, note, makers, start=fork_step)
                    note(f"rolled back from step {step} to {saved.step}, on with other prompts")
                    continue

                with timer("record"), transfers(), best_effort("the rollouts", note):
                    current.record(step, result.experience, batch, state)
                with transfers():
                    for extension in run.extensions.values():
                        state = extension.after(ctx, state, step)
                host = host | {
                    "step": step,
                    "tokens": host["tokens"] + metrics["tokens"],
                    "rollouts": current.collector.get_state(),
                    "extensions": {name: e.get_state() for name, e in run.extensions.items()},
                    "seconds": already + perf_counter() - start,
                }
                if config.eval.every and step % config.eval.every == 0 and step < config.steps:
                    with timer("eval"):
                        figures = machine.assess(state, step)
                    metrics |= {f"eval/{name}": value for name, value in figures.items()}
                end_time = perf_counter()
                metrics |= timer.take() | {"time/step": end_time - began}
                began = end_time
                log.write(step, metrics)  # before the save: a checkpoint's rows are on disk
                if makers and (step == 1 or step % config.track.every == 0):
                    log.table(step, experience.table(result.experience, config.track.completions))
                if writer.due(step) or step in config.stages:
                    with timer("save"), transfers():
                        writer.save(step, state, host, metrics.get(config.checkpoint.best))
                run.callbacks.sampled(step, result.experience)
                run.callbacks.step(step, metrics)
                run.callbacks.stage("train", step, config.steps)
                exempt(metrics["compilations"])
        with transfers():
            writer.save_now(host["step"], state, host)
    except process.Stop as stop:
        save_stopped(run, stop, state, host)
        raise

    after = machine.assess(state, host["step"])
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


def set_host_state(run: RunContext, host: dict[str, Any]) -> None:
    """Give every extension its state on the host back."""
    for name, extension in run.extensions.items():
        if name in host["extensions"]:
            extension.set_state(host["extensions"][name])


def save_stopped(
    run: RunContext, stop: process.Stop, state: TrainState, host: dict[str, Any]
) -> None:
    """Save the last whole step of a run that was asked to stop, and choose its exit code."""
    try:
        with transfers():
            run.writer.save_now(host["step"], state, host)
        run.callbacks.note(f"step {host['step']} is saved; the same command continues")
    except OSError as error:
        stop.code = process.UNSAVED
        run.callbacks.note(f"WARNING: {error}")
