"""What becomes of the rewards of a batch before any advantage is taken.

Rewards are `[N]`, one a sample; `expert` marks rows that the policy did not sample, such as the
reference answer to each prompt. Samples whose reward failed (`valid` 0) leave every statistic.
"""

import jax
import jax.numpy as jnp

from losses.masking import clean_rewards, where_valid

KIND = "shaping"


def par(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    expert: jax.Array,
    valid: jax.Array | None = None,
) -> jax.Array:
    """PAR: the probability that the sample is preferred to the reference answer of its prompt.

    Bounded, steep at the reference and flat far above it, where a reward model is least to be
    trusted.

    Formula: `sigmoid(r_i - mean_(references of g) r)`
    Paper: Fu et al. 2025, "Reward Shaping to Mitigate Reward Hacking in RLHF" (PAR)

    Args:
      rewards: `[N]`, a reward model's logits.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static; an upper bound will do.
      expert: `[N]` bool, the reference answers; a group without one is measured against 0.
      valid: `[N]` bool.

    Returns:
      `[N]` in `[0, 1]`.
    """
    rewards, valid = clean_rewards(rewards, valid)
    weight = (valid & expert).astype(rewards.dtype)
    count = jax.ops.segment_sum(weight, group_ids, num_groups)
    total = jax.ops.segment_sum(weight * rewards, group_ids, num_groups)
    reference = total / jnp.maximum(count, 1.0)
    return where_valid(valid, jax.nn.sigmoid(rewards - reference[group_ids]))


def settled_label(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    expert: jax.Array,
    valid: jax.Array | None = None,
) -> jax.Array:
    """ViSurf's control of the label's reward: once samples are as good, it teaches nothing more.

    At the mean of the samples the label changes neither the group's mean nor, with advantages
    centred by the group, any parameter.

    Formula: `r_label := mean_(sampled j) r_j` where `max_(sampled j) r_j >= r_label`
    Paper: Liu et al. 2025, "ViSurf: Visual Supervised-and-Reinforcement Fine-Tuning" (recalled)

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static; an upper bound will do.
      expert: `[N]` bool, the labels.
      valid: `[N]` bool.

    Returns:
      `[N]`.
    """
    rewards, valid = clean_rewards(rewards, valid)
    own = valid & ~jnp.asarray(expert, bool)
    weight = own.astype(rewards.dtype)
    count = jax.ops.segment_sum(weight, group_ids, num_groups)
    mean = jax.ops.segment_sum(weight * rewards, group_ids, num_groups) / jnp.maximum(count, 1.0)
    best = jax.ops.segment_max(jnp.where(own, rewards, -jnp.inf), group_ids, num_groups)
    settled = valid & ~own & (best[group_ids] >= rewards)
    return jnp.where(settled, mean[group_ids], rewards)
