"""What updates on a batch need to know of policy and critic before the first of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from jaxrl import critic, mesh, objective, placement
from jaxrl.config import Config
from jaxrl.nucleus import Nucleus
from jaxrl.types import Params, TrainState, Trajectory


def with_expert_logp(
    config: Config,
    score: Callable[..., jax.Array],
    allowed: Nucleus | None,
    state: TrainState,
    batch: Trajectory,
) -> Trajectory:
    """Experts' tokens with the log-probabilities that the policy gives them; others as they are.

    Args:
      config: of the run.
      score: from `train_step.make_score`.
      allowed: what the policy may choose.
      state: before the updates.
      batch: N sequences on the host.
    """
    if batch.expert is None or not np.any(batch.expert):
        return batch
    packed, _ = placement.pack(batch, config, batch.expert)
    logp = mesh.fetch(score(state.params, packed, allowed))
    mixed = np.where(batch.expert[:, None], logp, batch.behavior_logp)
    return batch.replace(behavior_logp=mixed)


def prepared(
    config: Config,
    score: Callable[..., jax.Array],
    value: Callable[..., jax.Array],
    anchor: Callable[[TrainState], Params] | None,
    allowed: Nucleus | None,
    state: TrainState,
    batch: Trajectory,
) -> Trajectory:
    """The batch with proximal log-probabilities and the critic's advantages, where they are used.

    Args:
      config, score, allowed, state, batch: as in `with_expert_logp`.
      value: from `critic.make_values`.
      anchor: the reference policy, if there is one.
    """
    proximal = objective.needs_proximal(config.objective)
    if not proximal and not config.critic.use:
        return batch
    packed, _ = placement.pack(batch, config)
    if proximal:
        batch = batch.replace(proximal_logp=score(state.params, packed, allowed))
    if config.critic.use:
        ref_logp = score(anchor(state), packed) if config.critic.kl_coef else None
        values = value(state.critic.params, packed)
        batch = critic.estimate(config.critic, batch, values, ref_logp, state.kl_coef)
    return mesh.fetch(batch)
