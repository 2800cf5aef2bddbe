"""The training loop: prompts, rollouts, scores, one update, metrics, checkpoint; then again.

`train` reads top to bottom. All that a run carries is `TrainState` on the mesh and a small `host`
dict beside it; a checkpoint holds both, so the same call in the same directory continues the run,
bit for bit, wherever it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import jax
import numpy as np

from jaxrl import (
    average,
    checkpoint,
    critic,
    distributed,
    evaluate,
    guards,
    history,
    kl_control,
    nucleus,
    objective,
    optimizer,
    placement,
    policy_reward,
    replay,
    reshard,
    rollout,
    rundir,
    signals,
    stages,
    trainable,
    usage,
)
from jaxrl.begin import begin, check, reference
from jaxrl.config import Config
from jaxrl.guards import Trip
from jaxrl.heartbeat import Heartbeat
from jaxrl.metrics import MetricsLog, Timer
from jaxrl.prepare import prepared, with_expert_logp
from jaxrl.rundir import best_effort, run_directory
from jaxrl.types import TrainState, Trajectory
from jaxrl.workshop import Watch, Workshop

__all__ = ["Watch", "run_directory", "train"]


def train(config: Config, watch: Watch = Watch()) -> dict[str, Any]:
    """Run a config from its start, or from its newest checkpoint, to its last step.

    Returns:
      What is written to `summary.json`.

    Raises:
      ValueError: a config that cannot work; nothing has been compiled or written yet.
      BlockingIOError: another process is running in this directory.
      signals.Stop: SIGTERM or Ctrl-C; the state is saved. Uncaught, it exits with code 75.
      guards.Stopped: a guard whose action is to stop; the state before the bad update is saved.
      OSError: the last step could not be saved.
    """
    start = perf_counter()
    task, held_out, actor = check(config)
    the_mesh, sampling_mesh = reshard.meshes(config.mesh, config.sampling)
    watch = watch if distributed.first() else Watch()
    directory = rundir.prepare(config, watch.note)
    with (
        rundir.locked(directory),
        signals.stoppable(config.checkpoint.grace_seconds, watch.note) as gate,
        Heartbeat(directory, config.guard.stall_seconds, watch.note) as heart,
        jax.set_mesh(the_mesh),
        stages.open_pools(config) as pools,
    ):
        rundir.save_config(directory, config)
        checkpoint.set_aside(directory, after=checkpoint.newest(directory, watch.note))
        with (
            checkpoint.Writer(directory, config.checkpoint, watch.note) as writer,
            distributed.together(),
        ):
            shop = Workshop(
                config,
                watch,
                directory,
                task,
                held_out,
                actor,
                pools,
                sampling_mesh,
                writer,
                gate,
                heart,
            )
            with usage.counted() as used:
                return _run(shop, start, used)


def _run(shop: Workshop, start: float, used: Callable[[], dict[str, float]]) -> dict[str, Any]:
    config, actor, writer, note = shop.config, shop.actor, shop.writer, shop.watch.note
    buffer = replay.open_buffer(config.replay, config.seed)
    updates = config.steps * config.updates_per_batch
    optimize = optimizer.make(config.optimizer, updates, actor.model)
    learning_rate = optimizer.learning_rate(config.optimizer, updates)
    trained = trainable.part(actor.model, config.lora, config.train)

    def complete(state: TrainState) -> TrainState:
        state = critic.begun(config.critic, actor.model, updates, state)
        state = nucleus.begun(config.nucleus, trained, state)
        return kl_control.begun(config, average.begun(config.average, trained, state))

    like = placement.abstract_state(
        actor.model,
        optimize,
        config.lora,
        trained,
        complete,
        offload=config.optimizer.offload,
    )
    to_sampler = reshard.sampler_weights(
        actor.model, jax.sharding.get_mesh(), shop.sampling_mesh, config.compute_dtype
    )
    value = critic.make_values(config.critic, actor.model)

    def assess(state: TrainState, step: int) -> dict[str, float]:
        shop.heart.beat("evaluate", step)
        averaged = config.average.decay and config.average.evaluate
        params = to_sampler(average.params(trained, state) if averaged else state.params)
        with jax.set_mesh(shop.sampling_mesh):
            figures, experience = evaluate.evaluate(
                actor, params, shop.held_out, shop.pool, config.rollout, config.sampler
            )
        with best_effort("the evaluation", note):
            evaluate.save(shop.directory, step, experience, actor.tokenizer.decode)
        return figures

    _, state, host = begin(shop, optimize, like, assess, trained, complete)
    if host["stream"] is not None:
        buffer.set_state(host["replay"])
    recorder = history.Recorder(shop.directory, note)
    begun = -1  # where the stage began that is under way
    anchor = reference(shop, like, trained, host["step"])
    already = host["seconds"]

    log = MetricsLog(shop.directory, host["step"], note, config.wandb)
    timer, tripped, began = Timer(), list[Trip](), perf_counter()
    try:
        while host["step"] < config.steps:
            step = host["step"] + 1
            if begun != (begun := stages.start(config, host["step"])):
                stage = stages.open_stage(
                    shop, begun, host["stream"], recorder, optimize, trained, like
                )
            shop.heart.beat("sample", step)
            with timer("sync"):
                params = to_sampler(state.params)
                allowed = nucleus.of(config.nucleus, trained, state)
                told = allowed and allowed.replace(params=to_sampler(allowed.params))
                guide = nucleus.guide(actor.model, told)
            with jax.set_mesh(shop.sampling_mesh):
                experience, sampled = stage.experiences.step(
                    params, guide, int(state.step), step, timer
                )
            del params, told, guide
            with shop.gate.closed():  # from here a signal waits for the end of the step
                shop.heart.beat("train", step)
                if config.policy_reward.use:
                    with timer("score"):
                        experience = policy_reward.rewarded(
                            config, actor.tokenizer, stage.score, state.params, experience
                        )
                trajectory = rollout.as_trajectory(experience, config)
                own = len(trajectory.tokens)
                with timer("train"):
                    trajectory = with_expert_logp(config, stage.score, allowed, state, trajectory)
                    if config.replay.groups:
                        version = int(state.step)
                        trajectory = buffer.mix(trajectory, config.rollout.group_size, version)
                    trajectory = prepared(
                        config, stage.score, value, anchor, allowed, state, trajectory
                    )
                    measured = []
                    for part in shares(trajectory, config.updates_per_batch, own):
                        keep = objective.worth_computing(config.objective, part, int(state.step))
                        packed, cost = placement.pack(part, config, keep)
                        ref_logp = stage.score(anchor(state), packed) if anchor else None
                        state, metrics = stage.update(state, part, packed, ref_logp)
                        measured.append(metrics)
                    metrics = combine(jax.device_get(measured))
                metrics |= rollout.measure(experience) | cost | used()
                metrics["prompts_sampled"] = float(sampled)
                metrics["learning_rate"] = float(learning_rate(int(state.step) - 1))

                before, tripped = tripped, guards.trips(config.guard, metrics)
                if tripped:
                    guards.report(shop.directory, step, tripped, before, trajectory, metrics, note)
                action = guards.decide(config.guard, tripped, host["rollbacks"])
                if action == "stop":
                    raise guards.Stopped(guards.explain(shop.directory, step, tripped))
                if action == "rollback":
                    saved = checkpoint.restore(shop.directory, writer.settle(), like)
                    state, rollbacks = saved.state, host["rollbacks"] + 1
                    stage.experiences.abandon()
                    # not the old position: its prompts led here
                    position = stage.experiences.get_state()
                    host = saved.host | {"stream": position, "rollbacks": rollbacks}
                    buffer.set_state(host["replay"])
                    anchor = reference(shop, like, trained, saved.step)
                    log.close()
                    log = MetricsLog(shop.directory, saved.step, note, config.wandb)
                    note(f"rolled back from step {step} to {saved.step}, on with other prompts")
                    continue

                with timer("record"), best_effort("the rollouts", note):
                    stage.record(step, experience, trajectory, state)
                every = config.reference.every
                if anchor and every and step % every == 0:
                    with timer("reference"):
                        checkpoint.save_reference(shop.directory, state.params, step)
                        anchor = reference(shop, like, trained, step)
                    if config.reference.reset_optimizer:
                        state = state.replace(opt_state=optimizer.cleared(state.opt_state))
                if config.nucleus.mass and step % config.nucleus.every == 0:
                    state = nucleus.renewed(trained, state)
                host = host | {
                    "step": step,
                    "tokens": host["tokens"] + metrics["tokens"],
                    "stream": stage.experiences.get_state(),
                    "replay": buffer.get_state(),
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
                if writer.due(step) or step in config.stages:
                    with timer("save"):
                        writer.save(step, state, host, metrics.get(config.checkpoint.best))
                shop.watch.step(step, metrics)
                shop.watch.stage("train", step, config.steps)
        writer.save_now(host["step"], state, host)
    except signals.Stop as stop:
        save_stopped(shop, stop, state, host)
        raise

    after = assess(state, config.steps)
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
        "eval": {"before": host["before"], "after": after},
        **rundir.environment(),
    }
    rundir.save_summary(shop.directory, summary)
    return summary


def save_stopped(
    shop: Workshop, stop: signals.Stop, state: TrainState, host: dict[str, Any]
) -> None:
    """Save the last whole step of a run that was told to stop, and choose its exit code."""
    try:
        shop.writer.save_now(host["step"], state, host)
        shop.watch.note(f"step {host['step']} is saved; the same command continues")
    except OSError as error:
        stop.code = signals.UNSAVED
        shop.watch.note(f"WARNING: {error}")


def shares(batch: Trajectory, count: int, own: int) -> Iterator[Trajectory]:
    """Equal runs of whole groups, one an update.

    Args:
      batch: N sequences.
      count: of updates.
      own: how many sequences are of this step; each run has its part of them, and of the rest.
    """
    starts = (0, own)
    sizes = (own // count, (len(batch.tokens) - own) // count)
    for i in range(count):
        spans = [slice(s + i * n, s + (i + 1) * n) for s, n in zip(starts, sizes, strict=True)]
        yield jax.tree.map(lambda a: np.concatenate([a[span] for span in spans]), batch)  # noqa: B023


def combine(measured: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Means over a step's updates, and the greatest staleness.

    The sampler's gap is taken at the first update, before any.
    """
    out = {k: float(np.mean([m[k] for m in measured])) for k in measured[0]}
    out["staleness_max"] = float(max(m["staleness_max"] for m in measured))
    return out | {k: float(measured[0][k]) for k in ("logp_gap", "logp_gap_max")}
