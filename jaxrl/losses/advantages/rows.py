"""Which sequences of a batch are trained on, once all of them have their advantage.

`[N]` bool out. Ranks compare all pairs of the batch, so memory is `N^2` bools.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, clean_rewards, group_moments
from jaxrl.losses.reduce.shapes import checked

KIND = "rows"


@checked
def sampled(expert: jax.Array) -> jax.Array:
    """Rows that the policy sampled: experts serve as what they are compared with.

    Formula: `not expert_i`
    Paper: (a mask)

    Args:
      expert: `[N]` bool.

    Returns:
      `[N]` bool.
    """
    return ~jnp.asarray(expert, bool)


@checked
def stopped(stopped: jax.Array) -> jax.Array:
    """Rows whose completion ended by itself: those that were cut off are left out of the loss.

    Formula: `stopped_i`
    Paper: Yu et al. 2025, "DAPO" (overlong filtering)

    Args:
      stopped: `[N]` bool, whether the policy wrote the token that ends a completion.

    Returns:
      `[N]` bool.
    """
    return jnp.asarray(stopped, bool)


@checked
def fresh(age: jax.Array) -> jax.Array:
    """Rows of this step: replayed ones serve as what they are compared with.

    Formula: `age_i = 0`
    Paper: (a mask)

    Args:
      age: `[N]`, updates since the sequence was sampled: 0 for this step's own.

    Returns:
      `[N]` bool.
    """
    return jnp.asarray(age) == 0


@checked
def unsolved(greedy_rewards: jax.Array, *, solved: float = 1.0) -> jax.Array:
    """SELF's filter: samples of prompts that the policy's own most likely answer does not solve.

    Formula: `r_greedy != solved`
    Paper: Nguyen et al. 2025, "The Reasoning Boundary Paradox: How Reinforcement Learning
      Constrains Language Models" (SELF)

    Args:
      greedy_rewards: `[N]`, of the greedy answer to each sample's prompt.
      solved: the reward of a right answer.

    Returns:
      `[N]` bool.
    """
    return as_float(greedy_rewards) != solved


@checked
def best_worst(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    best: int = 1,
    worst: int = 1,
    valid: jax.Array | None = None,
) -> jax.Array:
    """PF-PPO's filter: the samples ranked first and last, where a reward model is most reliable.

    Formula: `rank_i < best or rank_i >= n_g - worst`, ties by order
    Paper: Shen & Zhang 2024, "Policy Filtration in RLHF to Fine-Tune LLM for Code Generation"
      (best-of-N with `worst = 0`, else best-worst)

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      best, worst: samples kept at each end of a group.
      valid: `[N]` bool; other rows are neither ranked nor kept.

    Returns:
      `[N]` bool.
    """
    rewards, valid = clean_rewards(rewards, valid)
    mates = (group_ids[:, None] == group_ids[None, :]) & valid[None, :]
    order = jnp.arange(len(rewards))
    above = rewards[None, :] > rewards[:, None]
    earlier = (rewards[None, :] == rewards[:, None]) & (order[None, :] < order[:, None])
    rank = jnp.sum(mates & (above | earlier), axis=1)
    return valid & ((rank < best) | (rank >= jnp.sum(mates, axis=1) - worst))


@checked
def recomposed(
    rewards: jax.Array,
    lengths: jax.Array,
    group_ids: jax.Array,
    *,
    age: jax.Array,
    valid: jax.Array | None = None,
    threshold: float = 0.5,
) -> jax.Array:
    """RoRecomp's batches: what says clearly `be brief` now, what does not when it is replayed.

    The priority batch is the passed that are no longer than their group's median and the failed
    that are longer. The rest trains as the compensation batch, when the replay buffer brings the
    group back. The median is our reading of short and long.

    Formula: `clear_i` if `age_i = 0`, else `not clear_i`; `clear` = passed and `l <= median_g l`,
      or failed and `l > median_g l`
    Paper: Li et al. 2025, "RoRecomp: Enhancing Reasoning Efficiency via Rollout Response
      Recomposition in Reinforcement Learning"

    Args:
      rewards: `[N]`.
      lengths: `[N]`.
      group_ids: `[N]` int32.
      age: `[N]`, updates since the sequence was sampled: 0 for this step's own.
      valid: `[N]` bool.
      threshold: least reward that passes.

    Returns:
      `[N]` bool.
    """
    rewards, valid = clean_rewards(rewards, valid)
    mates = (group_ids[:, None] == group_ids[None, :]) & valid[None, :]
    shorter = jnp.sum(mates & (lengths[None, :] < lengths[:, None]), axis=1)
    short = 2 * shorter < jnp.sum(mates, axis=1)  # no longer than the median
    clear = (rewards >= threshold) == short
    return valid & (clear == (age == 0))


@checked
def spread(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    share: float = 0.5,
    valid: jax.Array | None = None,
) -> jax.Array:
    """RLPR's filter: groups whose rewards differ enough, prompts that are not all easy or all hard.

    The threshold follows the run: the paper moves it by an average over steps, here it is taken
    from the batch itself.

    Formula: `std_g r >= share mean_(valid j) std_(g_j) r`, and `std_g r > 0`
    Paper: Yu et al. 2025, "RLPR: Extrapolating RLVR to General Domains without Verifiers"

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static; an upper bound will do.
      share: of the mean deviation.
      valid: `[N]` bool.

    Returns:
      `[N]` bool, False for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    _, _, deviation = group_moments(rewards, group_ids, num_groups, valid, 0)
    mean = jnp.sum(jnp.where(valid, deviation, 0.0)) / jnp.maximum(jnp.sum(valid), 1)
    return valid & (deviation >= share * mean) & (deviation > 0)
