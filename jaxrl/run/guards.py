"""Guards: conditions under which an update is refused, and the record of such updates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import GuardConfig
from jaxrl.data.types import Score
from jaxrl.mesh import distributed, mesh
from jaxrl.record import checkpoint, storage
from jaxrl.record.storage import best_effort, write_json
from jaxrl.training.train_step import Update
from jaxrl.types import Packed, TrainState, Trajectory

SEVERITY = ("off", "warn", "skip", "rollback", "stop")
_RECORDS = 10  # a run that trips at every step must not fill the disk


class Stopped(RuntimeError):
    """A guard has ended the run."""


class Trip(NamedTuple):
    """A guard that has tripped."""

    guard: str
    action: str


def tripped(config: GuardConfig, metrics: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Scalar bools by guard, for the guards that are on; pure, so it runs inside jit.

    Args:
      config: actions and limits.
      metrics: scalars of one update: `loss`, `grad_norm`, `logp_gap_max`, `entropy`,
        `advantage_abs`, `error_rate`, and `kl` where there is a reference.
    """
    flags = {
        "non_finite": ~jnp.isfinite(metrics["loss"]) | ~jnp.isfinite(metrics["grad_norm"]),
        "ratio": metrics["logp_gap_max"] > config.max_log_ratio,
        "entropy": metrics["entropy"] < config.min_entropy,
        "zero_signal": metrics["advantage_abs"] == 0,
        "reward_errors": metrics["error_rate"] > config.max_error_rate,
    }
    if "kl" in metrics:
        flags["kl"] = metrics["kl"] > config.max_kl
    return {name: value for name, value in flags.items() if getattr(config, name) != "off"}


def guarded(update: Update, config: GuardConfig) -> Update:
    """`update`, which leaves the state as it was, but for the step, where a guard refuses it.

    Every action but `warn` refuses: a rollback discards the state, and a stopped run keeps the
    last good one. Adds the metrics `error_rate` and, of each guard that is on, `guard/NAME`.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def run(
        state: TrainState, batch: Trajectory, packed: Packed, ref_logp: jax.Array | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        proposed, metrics = update(state, batch, packed, ref_logp)
        scored_rows = batch.extra.get("addition", 0) == 0  # what was added was not scored now
        answered = jnp.any(batch.action_mask, axis=-1) & scored_rows
        failed = jnp.sum(answered & ~batch.valid)
        metrics["error_rate"] = failed / jnp.maximum(jnp.sum(answered), 1)
        flags = tripped(config, metrics)
        refusals = [value for name, value in flags.items() if getattr(config, name) != "warn"]
        refused = jnp.any(jnp.stack([jnp.bool_(False), *refusals]))
        next_state = jax.tree.map(lambda new, old: jnp.where(refused, old, new), proposed, state)
        metrics["skipped"] = jnp.maximum(metrics["skipped"], refused.astype(jnp.float32))
        metrics |= {f"guard/{name}": value.astype(jnp.float32) for name, value in flags.items()}
        return next_state.replace(step=proposed.step), metrics

    return run


def trips(config: GuardConfig, metrics: Mapping[str, float]) -> list[Trip]:
    """The guards that tripped in any update of a step, the most severe action first."""
    names = [name for name in metrics if name.startswith("guard/") and metrics[name] > 0]
    step_trips = [
        Trip(n, getattr(config, n)) for n in (name.removeprefix("guard/") for name in names)
    ]
    return sorted(step_trips, key=lambda trip: -SEVERITY.index(trip.action))


def decide(config: GuardConfig, step_trips: list[Trip], rollbacks: int) -> str:
    """The action for a step: the most severe one, or a stop in place of one rollback more.

    Args:
      config: `max_rollbacks`.
      step_trips: from `trips`.
      rollbacks: how often the run has been rolled back already.
    """
    action = step_trips[0].action if step_trips else "off"
    return "stop" if action == "rollback" and rollbacks >= config.max_rollbacks else action


def check_scores(scores: Sequence[Score], what: str) -> None:
    """Stop a run at its beginning where every score of a batch has failed.

    Args:
      scores: of the batch.
      what: was scored, for the message.

    Raises:
      Stopped: with the first reason.
    """
    if scores and all(score.error is not None for score in scores):
        raise Stopped(
            f"all {len(scores)} completions of {what} could not be scored, so nothing is trained: "
            f"{scores[0].error}"
        )


def explain(directory: Path, step: int, step_trips: list[Trip]) -> str:
    """Why a run has stopped, and what can be done."""
    names = ", ".join(trip.guard for trip in step_trips)
    return (
        f"step {step} tripped {names}, and the run stops; its batch is in {directory}/spikes, and "
        f"`jaxrl replay {directory} --step {step}` computes it again; the same command with other "
        "--guard values continues from the newest checkpoint"
    )


def report(
    directory: Path,
    step: int,
    step_trips: list[Trip],
    before: list[Trip],
    batch: Trajectory,
    metrics: Mapping[str, float],
    note: Callable[[str], None],
) -> None:
    """Report a step that tripped, keep its batch, and pin the checkpoint to compute it again from.

    Args:
      directory: of the run.
      step: which.
      step_trips: from `trips`.
      before: those of the step before, which have been reported.
      batch: all its sequences.
      metrics: of the step.
      note: called with the warning.
    """
    if set(step_trips) - set(before):
        names = ", ".join(f"{trip.guard} ({trip.action})" for trip in step_trips)
        note(f"WARNING: guards tripped at step {step}: {names}")
    batch = mesh.fetch(batch)
    if not distributed.first():
        return
    with best_effort("the batch", note):
        if record(directory, step, step_trips, batch, metrics) and (
            saved := checkpoint.steps(directory)
        ):
            checkpoint.pin(directory, saved[-1])


def record(
    directory: Path,
    step: int,
    step_trips: list[Trip],
    batch: Trajectory,
    metrics: Mapping[str, float],
) -> Path | None:
    """Write the batch and metrics of a step to `spikes/STEP`; None if it or enough are there.

    `batch.npz` holds the arrays of the `Trajectory` by name.
    """
    spikes = directory / "spikes"
    where = spikes / f"{step:08d}"
    # The first record of a step stays: it is the one that a replay from its checkpoint meets.
    if where.exists() or len(storage.entries(spikes)) >= _RECORDS:
        return None
    storage.make_inside(spikes)
    storage.make_inside(where)
    arrays = {name: np.asarray(a) for name, a in vars(batch).items() if a is not None}
    with (where / "batch.npz").open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # mypy: for `allow_pickle`
    entry = {
        "step": step,
        "trips": [trip._asdict() for trip in step_trips],
        "metrics": dict(metrics),
    }
    write_json(where / "spike.json", entry)
    return where
