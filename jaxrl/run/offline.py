"""Experience from the rows of a file; held-out rows that the objective is measured on."""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grain
import jax

from jaxrl.config import Config
from jaxrl.data.sources import rows
from jaxrl.data.sources.rows import Rows
from jaxrl.mesh import mesh
from jaxrl.record.metrics import Timer
from jaxrl.rollout import experience, written
from jaxrl.rollout.experience import Collector, Experience
from jaxrl.rollout.policy import Policy
from jaxrl.rollout.rollout_log import HistoryLog
from jaxrl.rollout.written import Group, gathered, groups
from jaxrl.run import placement, reference
from jaxrl.run.context import Origin, RunContext, StageCollector, ToSampler
from jaxrl.run.extension import Context, preparation, teacher
from jaxrl.run.reference import Scored, reference_logp
from jaxrl.training.train_step import make_measure
from jaxrl.types import TrainState, Trajectory

_ENDLESS = sys.maxsize // 2  # grain computes with it in floats, which round up
_TOLD = ("logp_gap", "logp_gap_max", "policy_loss")
"""Metrics that only sampled tokens have, or that repeat another."""


def origin(config: Config, actor: Policy) -> Origin:
    """The origin of a run that learns from a file.

    Raises:
      ValueError: a file or a row that cannot be used, or a kind that the objective does not learn
        from.
    """
    settings = config.data
    tokenizer = actor.tokenizer
    file_rows = written.usable(tokenizer, config, settings.path)
    evaluated = (
        written.usable(tokenizer, config, settings.eval_path) if settings.eval_path else file_rows
    )
    if settings.max_tokens > actor.model.max_positions:
        raise ValueError(
            f"data.max_tokens={settings.max_tokens} exceeds the model's "
            f"{actor.model.max_positions} positions; lower it"
        )
    if settings.eval_path:
        train, eval_indices = (
            list(range(len(file_rows))),
            list(range(len(evaluated)))[: config.eval.problems],
        )
    else:
        train, eval_indices = rows.divide(file_rows, settings.eval_share, config.eval.problems)
    read = ((i, groups(actor, config, evaluated, i)) for i in eval_indices)
    held_out = list(read)

    def open_collector(
        run: RunContext, ctx: Context, to_sampler: ToSampler, recorder: HistoryLog, start: int
    ) -> StageCollector:
        for bad in file_rows.bad[:3]:
            run.callbacks.note(f"left out {bad.id}: {bad.why}")
        if file_rows.bad:
            run.callbacks.note(f"{len(file_rows.bad)} bad rows of {file_rows.path} are left out")
        for note in written.notes(tokenizer, config, file_rows):
            run.callbacks.note(note)
        return open_rows(
            ctx.config, run.policy, file_rows, train, scored(run.directory).get("train")
        )

    sources = {"train": file_rows, **({"eval": evaluated} if settings.eval_path else {})}

    @functools.cache
    def scored(directory: Path) -> dict[str, Scored]:
        return reference.read_cache(directory) if settings.cache_reference else {}

    @functools.cache
    def batch(directory: Path) -> Trajectory:
        cache = scored(directory).get("eval" if settings.eval_path else "train")
        batch_groups = (
            row_groups if cache is None else cache.fill(row_groups, i) for i, row_groups in held_out
        )
        return experience.to_trajectory(config)(
            gathered(itertools.chain.from_iterable(batch_groups))
        )

    measure: Callable[..., dict[str, jax.Array]] | None = None

    def assess(
        run: RunContext, ctx: Context, state: TrainState, to_sampler: ToSampler, step: int
    ) -> dict[str, float]:
        nonlocal measure
        if settings.cache_reference and not step:
            reference.write_cache(ctx, state, sources)
        measure = measure or make_measure(
            ctx.policy.model,
            ctx.config.objective,
            temperature=ctx.config.rollout.temperature,
            max_new_tokens=ctx.config.rollout.max_new_tokens,
            restriction=ctx.restriction,
            reading=ctx.reading,
            seed=ctx.config.seed,
        )
        return figures(ctx, run, state, batch(run.directory), measure) | {
            "rows": float(len(held_out))
        }

    return Origin(open_collector, assess, "loss", f"{len(held_out)} held-out rows")


def open_rows(
    config: Config,
    actor: Policy,
    file_rows: Rows,
    places: Sequence[int],
    scored: Scored | None = None,
) -> StageCollector:
    """The rows in a new order each epoch, batches running on over the epochs' ends.

    Args:
      config: its seed orders the rows.
      actor: its tokenizer writes them.
      file_rows: the rows of a file.
      places: those to train on.
      scored: what the reference policy makes of the rows, where that is cached.
    """
    order = grain.MapDataset.range(len(places)).shuffle(config.seed).repeat(_ENDLESS // len(places))
    last = config.data.epochs * len(places)  # 0: no epoch is the last
    if config.updates_per_batch > 1:  # which a batch that ends early may not be divided into
        last = 0
    position, piece = 0, 0  # rows that are done, and pieces of the one after them

    def step(state: TrainState, version: int, timer: Timer) -> tuple[Experience, dict[str, float]]:
        nonlocal position, piece
        batch: list[Group] = []
        left_out, in_a_row = 0, 0
        with timer("read"):
            while len(batch) < config.data.batch_size and not (batch and position == last):
                place = places[int(order[position])]
                row_groups = groups(actor, config, file_rows, place)
                in_a_row = 0 if row_groups else in_a_row + 1
                left_out += not row_groups
                if in_a_row >= len(places):
                    raise ValueError(
                        f"data.max_tokens={config.data.max_tokens} leaves no row of "
                        f"{file_rows.path!r} with an answer to learn; raise it"
                    )
                scored_groups = row_groups if scored is None else scored.fill(row_groups, place)
                part = scored_groups[piece : piece + config.data.batch_size - len(batch)]
                batch += part
                piece += len(part)
                if piece == len(row_groups):
                    position, piece = position + 1, 0
        return gathered(batch), {
            "epoch": position / len(places),
            "rows_left_out": float(left_out),
        }

    def set_state(saved: dict[str, Any]) -> None:
        nonlocal position, piece
        if "rows" not in saved:  # of a run that sampled, from which this one was forked
            return
        position, piece = saved["position"], saved.get("piece", 0)
        if saved["rows"] != file_rows.fingerprint:
            warnings.warn(
                f"the rows of {file_rows.path!r} have changed since this state was saved: its "
                "position is kept, but the rows from here on are other ones",
                stacklevel=2,
            )

    return Collector(
        step,
        lambda: {"position": position, "piece": piece, "rows": file_rows.fingerprint},
        set_state,
        lambda: None,
    )


def figures(
    ctx: Context,
    run: RunContext,
    state: TrainState,
    batch: Trajectory,
    measure: Callable[..., dict[str, jax.Array]],
) -> dict[str, float]:
    """The objective on a batch, as training would measure it, and its metrics.

    Args:
      ctx: of the run's first stage.
      run: its extensions prepare the batch.
      state: whose parameters are measured.
      batch: N sequences on the host.
      measure: from `train_step.make_measure`.
    """
    if prepare := preparation(ctx, run.extensions):
        batch = prepare(state, batch)
    packed, _ = placement.pack(batch, ctx.config)
    if teach := teacher(ctx, run.extensions):
        packed = teach(packed)
    ref_logp = reference_logp(ctx, state, batch, packed)
    placed = mesh.put(batch, placement.of_batch(batch))
    metrics = jax.device_get(measure(state, placed, packed, ref_logp))
    return {name: float(value) for name, value in metrics.items() if name not in _TOLD}
