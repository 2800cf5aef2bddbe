"""Advantages whose size depends on how difficult the prompt is for the policy.

Conventions as in `jaxrl.losses.advantages.groups`: `[N]` arrays of the whole batch, invalid
samples left out of everything. A factor of a whole group must come after the division by the
group's deviation, which would cancel it.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.advantages.groups import sampled_advantages
from jaxrl.losses.reduce.masking import as_float, clean_rewards, where_valid
from jaxrl.losses.reduce.shapes import checked

KIND = "advantage"


@checked
def grpo_s(
    rewards: jax.Array,
    group_ids: jax.Array,
    tokens: jax.Array,
    mask: jax.Array,
    *,
    num_groups: int,
    expert: jax.Array,
    valid: jax.Array | None = None,
    hardness: float = 4.0,
    responsiveness: float = 4.0,
    features: int = 256,
) -> jax.Array:
    """GRPO-S: GRPO's advantage, larger where samples are unlike the demonstration and worse.

    Two distances from the demonstration of the prompt, the expert row of its group: of the texts,
    as one less the cosine of their bags of tokens, where the paper has a text encoder, and of the
    rewards. Each gives a factor between 0 and 2, which is 1 at the mean of the batch. The sigmoids
    are our reading.

    Formula: `2 sigmoid(a (h_g - mean h)) 2 sigmoid(b (d_g - mean d)) (r_i - mean_own r) /
      (std_own r + eps)`, `h_g = mean_own (1 - cos(y_i, y*))`, `d_g = r(y*) - mean_own r`
    Paper: Cheng et al. 2025, "Inverse Reinforcement Learning with Dynamic Reward Scaling for LLM
      Alignment"

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32 in `[0, num_groups)`.
      tokens: `[N, T]` int32.
      mask: `[N, T]` bool: the response.
      num_groups: static; an upper bound will do.
      expert: `[N]` bool, the demonstrations; a group without one has the factor 1.
      valid: `[N]` bool.
      hardness, responsiveness: a and b; 0 leaves the factor at 1.
      features: entries of a bag; tokens are counted modulo this.

    Returns:
      `[N]`, 0 for demonstrations and invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    expert_mask = valid & jnp.asarray(expert, bool)
    sampled_mask = valid & ~expert_mask

    def mean(x: jax.Array, rows: jax.Array) -> jax.Array:
        """[N, ...] the mean over some rows of each one's group; 0 without any."""
        weight = rows.astype(rewards.dtype).reshape(-1, *[1] * (x.ndim - 1))
        total = jax.ops.segment_sum(x * weight, group_ids, num_groups)
        count = jax.ops.segment_sum(weight, group_ids, num_groups)
        return (total / jnp.maximum(count, 1.0))[group_ids]

    bags = jnp.zeros((len(tokens), features), rewards.dtype)
    rows = jnp.arange(len(tokens))[:, None]
    bags = bags.at[rows, tokens % features].add(as_float(jnp.asarray(mask, bool)))
    bags = bags / jnp.maximum(jnp.linalg.norm(bags, axis=1, keepdims=True), 1e-6)
    likeness = jnp.sum(bags * mean(bags, expert_mask), axis=1)
    has_expert = mean(expert_mask.astype(rewards.dtype), expert_mask) > 0

    def factor(distance: jax.Array, slope: float) -> jax.Array:
        counted = sampled_mask & has_expert
        centre = jnp.sum(where_valid(counted, distance)) / jnp.maximum(jnp.sum(counted), 1)
        return jnp.where(has_expert, 2.0 * jax.nn.sigmoid(slope * (distance - centre)), 1.0)

    scale = factor(mean(1.0 - likeness, sampled_mask), hardness)
    scale = scale * factor(mean(rewards, expert_mask) - mean(rewards, sampled_mask), responsiveness)
    return scale * sampled_advantages(
        rewards, group_ids, num_groups=num_groups, expert=expert, valid=valid
    )
