"""The loss over what environments said too, as if the policy had written it: an ablation."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.extensions.critic import require_before_critic
from jaxrl.mesh import mesh
from jaxrl.rollout import tasks
from jaxrl.run import placement
from jaxrl.run.extension import Context, Extension
from jaxrl.types import TrainState, Trajectory


@dataclasses.dataclass(frozen=True)
class UnmaskedConfig:
    """Training on observations, which runs leave out otherwise; no settings."""


def unmasked(settings: UnmaskedConfig) -> Extension:
    """Observations become actions, which the objective reinforces as it does the policy's own.

    What masking them is worth is then the difference to the same run without this extension. Their
    log-probabilities are those of the policy before the first update, so their ratios begin at 1.
    An entropy bonus holds for them too. What stands before the first action of an episode, such as
    a hint, stays masked. Episodes of several agents or contexts are refused, as what is read again
    at the start of a context is no observation.

    Paper: Jin et al. 2025, "Search-R1: Training LLMs to Reason and Leverage Search Engines with
    Reinforcement Learning" (loss masking for retrieved tokens)
    """

    def check(config: Config) -> None:
        tasks.require_turns(config, "unmasked", of_all=False)
        tasks.require_one_agent(config, "unmasked")
        names = [functions.extension_name(reference) for reference in config.extensions]
        if "corrector" in names:
            raise ValueError(
                "unmasked with corrector: it takes thoughts out of the loss; leave one of them out"
            )
        require_before_critic(config, "unmasked")

    def prepare(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
        unmasked_batch = with_observations(batch)
        packed, _ = placement.pack(unmasked_batch, ctx.config)
        logp = mesh.fetch(ctx.score(state.params, packed, ctx.restriction(state)))
        read = unmasked_batch.action_mask & ~np.asarray(batch.action_mask)
        return unmasked_batch.replace(
            behavior_logp=np.where(read, logp, batch.behavior_logp),
            policy_version=np.where(read, np.int32(state.step), batch.policy_version),
        )

    return Extension(check=check, prepare=prepare)


def with_observations(batch: Trajectory) -> Trajectory:
    """The batch, in which every token from an episode's first action to its last is an action.

    Args:
      batch: N sequences of T tokens on the host.

    Raises:
      ValueError: an episode has several contexts.
    """
    mask = np.asarray(batch.action_mask)
    after = np.logical_or.accumulate(mask, axis=1)
    action_mask = after & np.logical_or.accumulate(mask[:, ::-1], axis=1)[:, ::-1]
    parent = np.asarray(batch.extra.get("parent", np.arange(-1, mask.shape[1] - 1)))
    if np.any(action_mask & (parent != np.arange(-1, mask.shape[1] - 1))):
        raise ValueError(
            "unmasked: an episode goes on in another context, as where the chat template or the "
            "environment replaces what was read; use a task and a template that do not"
        )
    return batch.replace(action_mask=action_mask)
