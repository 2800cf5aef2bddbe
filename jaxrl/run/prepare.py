"""What must be computed from the policy before the first update on a batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxrl.mesh import mesh
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.training import objective
from jaxrl.types import TrainState, Trajectory


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


def with_expert_logp(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
    """Experts' tokens with the log-probabilities that the policy gives them; others as they are.

    A batch that experts wrote alone stays as it is where the objective does not ask for them.

    Args:
      ctx: of the stage.
      state: before the updates.
      batch: N sequences on the host.
    """
    if batch.expert is None or not np.any(batch.expert):
        return batch
    if np.all(batch.expert) and not objective.needs_behavior(ctx.config.objective):
        return batch
    packed, _ = placement.pack(batch, ctx.config, batch.expert)
    logp = mesh.fetch(ctx.score(state.params, packed, ctx.restriction(state)))
    mixed = np.where(batch.expert[:, None], logp, batch.behavior_logp)
    return batch.replace(behavior_logp=mixed)


def with_proximal_logp(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
    """The batch with the log-probabilities before the updates, where the objective asks for them.

    Args:
      ctx, state, batch: as in `with_expert_logp`.
    """
    if not objective.needs_proximal(ctx.config.objective):
        return batch
    packed, _ = placement.pack(batch, ctx.config)
    logp = ctx.score(state.params, packed, ctx.restriction(state))
    return batch.replace(proximal_logp=mesh.fetch(logp))
