"""Advantages from the rewards of a batch: group baselines and their relatives.

Rewards are `[N]`, one a sample; `group_ids` say which prompt a sample answers and may come in any
order, so groups split across hosts or interleaved with others need no sorting. Statistics are of
the whole batch handed in: pass the global batch. Samples whose reward failed (`valid` 0) leave
every statistic and get advantage 0. A group with one valid sample has no baseline and trains
nothing under the group modes: `informative` marks the samples that do train, for the metrics.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, clean_rewards, group_moments, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "advantage"

BASELINES = ("group", "batch", "none", "leave_one_out")
SCALES = ("group", "batch", "none")


@checked
def group_advantages(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    baseline: str = "group",
    scale: str = "group",
    valid: jax.Array | None = None,
    eps: float = 1e-4,
    ddof: int = 1,
) -> jax.Array:
    """Reward minus a baseline over a scale, each of the group, of the batch, or none.

    Formula: `A_i = (r_i - b) / (s + eps)`
    Paper: Shao et al. 2024, "DeepSeekMath" (GRPO: group, group); Liu et al. 2025, "Dr. GRPO"
      (group, none); Liu et al. 2025, "Tricks or Traps" (group, batch); Ahmadian et al. 2024,
      "Back to Basics" (RLOO: leave_one_out, none)

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static; an upper bound will do.
      baseline: `group` mean, `batch` mean, `none`, or `leave_one_out` (mean of the *other* samples
        of the group: `n / (n - 1) (r - mean)`).
      scale: standard deviation of the rewards of the `group` or of the `batch`, or `none`.
      valid: `[N]` bool, False where the reward is an error; such rewards may be NaN.
      eps: added to the standard deviation (1e-4 is TRL's).
      ddof: 1 divides the variance by `n - 1` (TRL, verl), 0 by `n`.

    Returns:
      `[N]`; 0 for invalid samples and, with a group baseline, for samples alone in their group.
    """
    if baseline not in BASELINES:
        raise ValueError(f"baseline={baseline!r} is unknown; choose one of {', '.join(BASELINES)}")
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r} is unknown; choose one of {', '.join(SCALES)}")
    rewards, valid = clean_rewards(rewards, valid)
    everyone = jnp.zeros_like(group_ids)
    _, batch_mean, batch_std = group_moments(rewards, everyone, 1, valid, ddof)
    count, group_mean, group_std = group_moments(rewards, group_ids, num_groups, valid, ddof)
    match baseline:
        case "group":
            advantages = rewards - group_mean
        case "leave_one_out":
            advantages = (rewards - group_mean) * count / jnp.maximum(count - 1.0, 1.0)
        case "batch":
            advantages = rewards - batch_mean
        case _:
            advantages = rewards
    if scale != "none":
        advantages = advantages / ((group_std if scale == "group" else batch_std) + eps)
    return where_valid(valid, advantages)


@checked
def sampled_advantages(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    expert: jax.Array,
    scale: str = "group",
    valid: jax.Array | None = None,
) -> jax.Array:
    """The policy's samples compared among themselves: an expert beside them is not in the group.

    Formula: `(r_i - mean_own r) / (std_own r + eps)`, 0 for experts
    Paper: Shao et al. 2024, "DeepSeekMath"; Zhang et al. 2025, "On-Policy RL Meets Off-Policy
      Experts" (CHORD keeps its experts apart so)

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      num_groups: static.
      expert: `[N]` bool.
      scale: as in `group_advantages`.
      valid: `[N]` bool.

    Returns:
      `[N]`.
    """
    rewards, valid = clean_rewards(rewards, valid)
    sampled_mask = valid & ~jnp.asarray(expert, bool)
    return group_advantages(
        rewards, group_ids, num_groups=num_groups, scale=scale, valid=sampled_mask
    )


@checked
def informative(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
) -> jax.Array:
    """Marks samples of groups whose valid rewards differ: the only ones a group baseline trains on.

    Formula: `1[max_(j in g) r_j > min_(j in g) r_j]`
    Paper: Yu et al. 2025, "DAPO" (dynamic sampling filters by it)

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      num_groups: static.
      valid: `[N]` bool.

    Returns:
      `[N]` bool, False for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    high = jax.ops.segment_max(jnp.where(valid, rewards, -jnp.inf), group_ids, num_groups)
    low = jax.ops.segment_min(jnp.where(valid, rewards, jnp.inf), group_ids, num_groups)
    return (high > low)[group_ids] & valid


@checked
def rloo(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
) -> jax.Array:
    """RLOO: each sample against the mean of the others of its prompt, unscaled.

    Formula: `r_i - mean_(j in g, j != i) r_j`
    Paper: Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization"; Kool et
      al. 2019, "Buy 4 REINFORCE Samples, Get a Baseline for Free!"

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static.
      valid: `[N]` bool.

    Returns:
      `[N]`; 0 for a sample alone in its group.
    """
    return group_advantages(
        rewards,
        group_ids,
        num_groups=num_groups,
        baseline="leave_one_out",
        scale="none",
        valid=valid,
    )


@checked
def remax(
    rewards: jax.Array, greedy_rewards: jax.Array, *, valid: jax.Array | None = None
) -> jax.Array:
    """ReMax: the reward of the greedy answer to the same prompt as baseline.

    Formula: `r(x, y) - r(x, argmax-decoded y)`
    Paper: Li et al. 2023, "ReMax: A Simple, Effective, and Efficient RL Method for Aligning LLMs"

    Args:
      rewards: `[N]`.
      greedy_rewards: `[N]`, of the greedy answer to each sample's prompt.
      valid: `[N]` bool, False if either reward is an error.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    return where_valid(valid, rewards - where_valid(valid, as_float(greedy_rewards)))


@checked
def opo(
    rewards: jax.Array,
    group_ids: jax.Array,
    lengths: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
) -> jax.Array:
    """OPO: the variance-optimal baseline, when a gradient's norm grows with the length.

    Formula: `r_i - sum_g(l r) / sum_g(l)`
    Paper: Hao et al. 2025, "On-Policy RL with Optimal Reward Baseline"

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      lengths: `[N]` action tokens.
      num_groups: static.
      valid: `[N]` bool.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    weight = jnp.where(valid, as_float(lengths), 0.0)
    total = jax.ops.segment_sum(weight * rewards, group_ids, num_groups)
    weights = jax.ops.segment_sum(weight, group_ids, num_groups)
    return where_valid(valid, rewards - (total / jnp.maximum(weights, 1.0))[group_ids])


@checked
def gpg_advantages(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
) -> jax.Array:
    """GPG: centred by the group, scaled up for the groups whose rewards do not differ.

    Formula: `alpha (r - mean_g r)`, `alpha = samples / samples of groups whose rewards differ`
    Paper: Chu et al. 2025, "GPG: A Simple and Strong RL Baseline for Model Reasoning"

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      num_groups: static.
      valid: `[N]` bool.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    trains = informative(rewards, group_ids, num_groups=num_groups, valid=valid)
    alpha = jnp.sum(valid) / jnp.maximum(jnp.sum(trains), 1)
    _, mean, _ = group_moments(rewards, group_ids, num_groups, valid, 1)
    return where_valid(valid, alpha.astype(rewards.dtype) * (rewards - mean))


@checked
def soft_advantages(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    beta: float = 1.0,
    valid: jax.Array | None = None,
) -> jax.Array:
    """Reward above the soft value, the log-partition function that KL-regularised RL implies.

    Formula: `r_i - beta log mean_(j in g) exp(r_j / beta)`
    Paper: Brantley et al. 2025, "Accelerating RL for LLM Reasoning with Optimal Advantage
      Regression"; Pan et al. 2025, "Trinity-RFT" (OPMD)

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      num_groups: static.
      beta: temperature; large is the group's mean, small its maximum.
      valid: `[N]` bool.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    top = jax.ops.segment_max(jnp.where(valid, rewards, -jnp.inf), group_ids, num_groups)
    top = jnp.where(jnp.isfinite(top), top, 0.0)[group_ids]
    excess = jnp.exp(jnp.where(valid, rewards - top, 0.0) / beta)
    _, mean, _ = group_moments(excess, group_ids, num_groups, valid, 0)
    return where_valid(valid, rewards - top - beta * jnp.log(jnp.where(valid, mean, 1.0)))
