"""One training step: experience, rewards, batch, updates."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.record.metrics import Timer
from jaxrl.rollout import experience as experiences
from jaxrl.rollout.experience import Experience
from jaxrl.run import guards, placement
from jaxrl.run.context import RunContext, Stage
from jaxrl.run.placement import transfers
from jaxrl.run.reference import reference_logp
from jaxrl.training import objective, optimizer, packing
from jaxrl.types import TrainState, Trajectory


class StepResult(NamedTuple):
    """What a step leaves behind."""

    state: TrainState
    version: int
    """`state.step`: the updates of all steps."""
    applied: int
    """Of them, those that the optimizer has applied; guards refuse the others."""
    experience: Experience
    """What was sampled or read, rewards as extensions changed them."""
    batch: Trajectory
    """What was trained on, on the host."""
    metrics: dict[str, float]


def step(
    run: RunContext,
    stage: Stage,
    state: TrainState,
    version: int,
    number: int,
    timer: Timer,
    training: contextlib.ExitStack,
) -> StepResult:
    """Collect experience and train on it.

    Args:
      run: the run.
      stage: that the step is in.
      state: before the step; its buffers are donated.
      version: `state.step`.
      number: of the step, from 1.
      timer: given the seconds of each phase.
      training: on it, the run's gate is closed when sampling is over, so that a signal waits until
        the caller has kept the step.
    """
    ctx, config, extensions = stage.ctx, stage.ctx.config, run.extensions.values()
    run.heart.beat("sample", number)
    with transfers():
        collected, sampling = stage.collector.step(state, version, timer)
    training.enter_context(run.gate.closed())
    run.heart.beat("train", number)
    with timer("score"), transfers():
        experience = collected
        for extension in extensions:
            experience = extension.reward(ctx, state, experience)
        experience = experiences.reconcile_turn_rewards(collected, experience)
    if number == 1:
        guards.check_scores(experience.scores, "the first batch")
    with timer("train"):
        with transfers():
            batch = stage.to_trajectory(experience)
            if stage.prepare is not None:
                batch = stage.prepare(state, batch)
        update_metrics = []
        for update, part in enumerate(packing.shares(batch, config.updates_per_batch)):
            with transfers():
                keep = objective.worth_computing(
                    config.objective, part, version + update, state.coefficients
                )
            packed, cost = placement.pack(part, config, keep)
            with transfers():
                if stage.teach is not None:
                    packed = stage.teach(packed)
                ref_logp = reference_logp(ctx, state, part, packed)
            state, metrics = stage.update(state, part, packed, ref_logp)
            update_metrics.append(metrics)
        on_host = experiences.measure(experience) | sampling | cost  # while the devices compute
        update_metrics, version, applied = jax.device_get(
            (update_metrics, state.step, optimizer.applied(state.opt_state))
        )
    mean_metrics = combine(update_metrics) | on_host
    return StepResult(state, int(version), int(applied), experience, batch, mean_metrics)


def combine(update_metrics: list[dict[str, Any]]) -> dict[str, float]:
    """Means over a step's updates, and the greatest lag.

    The sampler's gap is taken at the first update, before any.
    """
    out = {k: float(np.mean([m[k] for m in update_metrics])) for k in update_metrics[0]}
    out["lag/max"] = float(max(m["lag/max"] for m in update_metrics))
    return out | {k: float(update_metrics[0][k]) for k in ("logp_gap", "logp_gap_max")}
