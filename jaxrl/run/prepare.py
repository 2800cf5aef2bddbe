"""What must be computed from the policy before the first update on a batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxrl.mesh import mesh
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training import objective
from jaxrl.types import Array, TrainState, Trajectory


def prepared(
    ctx: Context, extensions: Iterable[Extension], state: TrainState, batch: Trajectory
) -> Trajectory:
    """The batch with all that its updates, or a measurement of it, need from before them.

    Args:
      ctx, state, batch: as in `with_expert_logp`.
      extensions: of the run, in order.
    """
    batch = with_expert_logp(ctx, state, batch)
    for extension in extensions:
        batch = extension.prepare(ctx, state, batch)
    return with_proximal_logp(ctx, state, batch)


def with_expert_logp(
    ctx: Context, state: TrainState, batch: Trajectory, rows: Array | None = None
) -> Trajectory:
    """Experts' tokens with the log-probabilities and the version of the policy; others as they are.

    A batch that experts wrote alone has the version alone where the objective does not ask for
    log-probabilities.

    Args:
      ctx: of the stage.
      state: before the updates.
      batch: N sequences on the host.
      rows: [N] bool, the experts' sequences; None: `batch.expert`.
    """
    rows = batch.expert if rows is None else rows
    if rows is None or not np.any(rows):
        return batch
    wrote = rows[:, None] & batch.action_mask
    version = np.where(wrote, np.int32(state.step), batch.policy_version)
    batch = batch.replace(policy_version=version)
    if np.all(rows) and not objective.needs_behavior(ctx.config.objective):
        return batch
    packed, _ = placement.pack(batch, ctx.config, rows)
    logp = mesh.fetch(ctx.score(state.params, packed, ctx.restriction(state)))
    return batch.replace(behavior_logp=np.where(rows[:, None], logp, batch.behavior_logp))


def with_proximal_logp(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
    """The batch with the log-probabilities before the updates, where the objective asks for them.

    Args:
      ctx, state, batch: as in `with_expert_logp`.
    """
    if not objective.needs_proximal(ctx.config.objective):
        return batch
    packed, _ = placement.pack(batch, ctx.config, batch.trained)
    logp = ctx.score(state.params, packed, ctx.restriction(state))
    return batch.replace(proximal_logp=mesh.fetch(logp))
