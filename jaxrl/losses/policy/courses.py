"""Objectives of three stages in one run: imitation, then preferences, then reinforcement.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`; `expert` and `step`
as in `jaxrl.losses.policy.phases`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.imitation.supervised import sft
from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.preference.direct import online_dpo
from jaxrl.losses.reduce.masking import in_turn
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def sft_dpo_rl(
    logp: jax.Array,
    behavior_logp: jax.Array,
    ref_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    expert: jax.Array,
    mask: jax.Array,
    group_ids: jax.Array,
    step: jax.Array,
    sft_steps: int = 20,
    dpo_steps: int = 20,
    beta: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """Supervised fine-tuning, then DPO, then PPO.

    A pair is the sampled row of a prompt with the highest reward and the one with the lowest. For
    DPO's reference to be the fine-tuned policy, it is renewed after `sft_steps`.

    Formula: `-log pi_t` on expert rows while `step < sft_steps`; then `online_dpo`, and from
      `sft_steps + dpo_steps` on `ppo_clip`, on sampled rows
    Paper: Wang et al. 2025, "Technical Report of TeleChat2, TeleChat2.5 and T1" (the stages; pairs
      from the policy's own samples are our reading)

    Args:
      logp, behavior_logp, ref_logp: `[B, T]`; the rows of a group must be in the same call.
      advantages: `[B, T]` or `[B, 1]`.
      rewards: `[B]`.
      expert: `[B]` bool.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32.
      step: scalar int, updates done.
      sft_steps, dpo_steps: updates of the first and of the second stage.
      beta: as in `dpo`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`, and `paired` `[B]`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    own = jnp.asarray(mask, bool) & ~jnp.asarray(expert, bool)[:, None]
    preference, found = online_dpo(
        logp, ref_logp, rewards, mask=own, group_ids=group_ids, beta=beta
    )
    step = jnp.asarray(step)
    sampled = jnp.where(step < sft_steps + dpo_steps, preference, policy)
    loss = in_turn(sft(logp)[0], sampled, expert, step < sft_steps)
    return loss, metrics | {"paired": found["paired"]}
