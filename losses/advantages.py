"""Advantages from the rewards of a batch: group baselines and their relatives.

Rewards are `[N]`, one a sample; `group_ids` say which prompt a sample answers and may come in any
order, so groups split across hosts or interleaved with others need no sorting. Statistics are of
the whole batch handed in: pass the global batch. Samples whose reward failed (`valid` 0) leave
every statistic and get advantage 0. A group with one valid sample has no baseline and trains
nothing under the group modes: `informative` marks the samples that do train, for the metrics.
"""

import jax
import jax.numpy as jnp

from losses.masking import as_float, where_valid

KIND = "advantage"

BASELINES = ("group", "batch", "none", "leave_one_out")
SCALES = ("group", "batch", "none")


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
    rewards, valid = _clean(rewards, valid)
    everyone = jnp.zeros_like(group_ids)
    _, batch_mean, batch_std = _moments(rewards, everyone, 1, valid, ddof)
    count, group_mean, group_std = _moments(rewards, group_ids, num_groups, valid, ddof)
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
    rewards, valid = _clean(rewards, valid)
    high = jax.ops.segment_max(jnp.where(valid, rewards, -jnp.inf), group_ids, num_groups)
    low = jax.ops.segment_min(jnp.where(valid, rewards, jnp.inf), group_ids, num_groups)
    return (high > low)[group_ids] & valid


def _clean(rewards: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Float rewards with invalid ones zeroed, and `valid` as a bool array."""
    rewards = as_float(rewards)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    return where_valid(valid, rewards), valid


def _moments(
    x: jax.Array, group_ids: jax.Array, num_groups: int, valid: jax.Array, ddof: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Count, mean and standard deviation of each sample's group, `[N]` each, in two passes."""
    weight = valid.astype(x.dtype)
    count = jax.ops.segment_sum(weight, group_ids, num_groups)
    mean = jax.ops.segment_sum(x * weight, group_ids, num_groups) / jnp.maximum(count, 1.0)
    squares = jnp.square(x - mean[group_ids]) * weight
    variance = jax.ops.segment_sum(squares, group_ids, num_groups) / jnp.maximum(count - ddof, 1.0)
    return count[group_ids], mean[group_ids], jnp.sqrt(variance)[group_ids]
