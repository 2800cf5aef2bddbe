"""Advantages that look at a group's pass rate: pass@k, maximum likelihood, difficulty weights.

Rewards are 0 or 1 (anything above 1/2 passes where a count is needed). Conventions as in
`jaxrl.losses.advantages.groups`: `[N]` arrays of the whole batch, invalid samples left out of
everything.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.advantages.groups import group_advantages
from jaxrl.losses.reduce.masking import clean_rewards, group_moments, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "advantage"


@checked
def pass_at_k(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    k: int = 4,
    valid: jax.Array | None = None,
) -> jax.Array:
    """Pass@k advantage: what a sample adds to the chance that a random k of its group pass.

    The group's samples are taken `k` at a time without replacement and a subset passes if any of
    its members does; this is the normalised advantage, averaged analytically over the subsets.

    Formula: `A+ = (1 - R) / s`, `A- = (1 - R - C(n- - 1, k - 1) / C(n - 1, k - 1)) / s`,
      `R = 1 - C(n-, k) / C(n, k)`, `s = sqrt(R (1 - R))`
    Paper: Chen et al. 2025, "Pass@k Training for Adaptively Balancing Exploration and Exploitation"

    Args:
      rewards: `[N]`, above 1/2 passes.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      num_groups: static.
      k: size of the subsets; a group of fewer samples trains nothing.
      valid: `[N]` bool.

    Returns:
      `[N]`; 0 for invalid samples and in groups whose subsets all pass or all fail.
    """
    rewards, valid = clean_rewards(rewards, valid)
    passed = where_valid(valid, (rewards > 0.5).astype(rewards.dtype))
    count, mean, _ = group_moments(passed, group_ids, num_groups, valid, 0)
    failed = jnp.round(count * (1.0 - mean))
    all_fail = _choose_ratio(failed, count, k)
    mates_fail = _choose_ratio(failed - 1.0, count - 1.0, k - 1)
    deviation = jnp.sqrt(all_fail * (1.0 - all_fail))
    trains = valid & (deviation > 0) & (count >= k)
    advantage = all_fail - jnp.where(passed > 0, 0.0, mates_fail)
    return jnp.where(trains, advantage / jnp.where(trains, deviation, 1.0), 0.0)


@checked
def maxrl(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
) -> jax.Array:
    """MaxRL: the gradient of the log of the pass rate, so that hard prompts weigh more.

    The group's centred reward is divided by its mean, where GRPO divides by its deviation. Averaged
    over the group, that is the mean score function of the successes, minus that of all samples.

    Formula: `(r_i - mean_g r) / mean_g r`, 0 if nothing passed
    Paper: Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning"

    Args:
      rewards: `[N]`, nonnegative.
      group_ids: `[N]` int32.
      num_groups: static.
      valid: `[N]` bool.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    _, mean, _ = group_moments(rewards, group_ids, num_groups, valid, 0)
    trains = valid & (mean > 0)
    return jnp.where(trains, (rewards - mean) / jnp.where(trains, mean, 1.0), 0.0)


@checked
def mgpo_weight(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    strength: float = 2.0,
    valid: jax.Array | None = None,
) -> jax.Array:
    """MGPO's weight: largest for prompts passed half the time, where there is most to learn.

    Formula: `exp(-lambda D)`, `D = p log(2 p) + (1 - p) log(2 (1 - p))`, `p = mean_g r`
    Paper: Xu et al. 2025, "Tiny Model, Big Logic" (VibeThinker, MaxEnt-Guided Policy Optimization)

    Args:
      rewards: `[N]` in `[0, 1]`.
      group_ids: `[N]` int32.
      num_groups: static.
      strength: lambda; 0 is no weighting. The default is ours, as the report has no value.
      valid: `[N]` bool.

    Returns:
      `[N]` in `(0, 1]`, one value a group.
    """
    rewards, valid = clean_rewards(rewards, valid)
    _, p, _ = group_moments(rewards, group_ids, num_groups, valid, 0)
    distance = jax.scipy.special.xlogy(p, 2.0 * p) + jax.scipy.special.xlogy(1 - p, 2.0 * (1 - p))
    return jnp.exp(-strength * distance)


@checked
def mgpo(
    rewards: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    strength: float = 2.0,
    valid: jax.Array | None = None,
    eps: float = 1e-4,
) -> jax.Array:
    """MGPO: GRPO's advantage, weighted by how undecided the prompt is.

    Formula: `mgpo_weight * (r - mean_g r) / (std_g r + eps)`
    Paper: Xu et al. 2025, "Tiny Model, Big Logic" (VibeThinker, MaxEnt-Guided Policy Optimization)

    Args:
      rewards: `[N]` in `[0, 1]`.
      group_ids: `[N]` int32.
      num_groups: static.
      strength: lambda of `mgpo_weight`.
      valid: `[N]` bool.
      eps: added to the standard deviation.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    weight = mgpo_weight(rewards, group_ids, num_groups=num_groups, strength=strength, valid=valid)
    return weight * group_advantages(
        rewards, group_ids, num_groups=num_groups, valid=valid, eps=eps
    )


def _choose_ratio(part: jax.Array, total: jax.Array, k: int) -> jax.Array:
    """`C(part, k) / C(total, k)`: the chance that k draws without replacement all fall in part."""
    draws = jnp.arange(k, dtype=part.dtype)
    factors = (part[:, None] - draws) / jnp.maximum(total[:, None] - draws, 1.0)
    return jnp.prod(jnp.clip(factors, 0.0, 1.0), axis=1)
