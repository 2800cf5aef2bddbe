"""Advantages normalised over the whole batch, by mean and deviation.

Conventions as in `jaxrl.losses.advantages.groups`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.advantages.groups import group_advantages
from jaxrl.losses.reduce.masking import as_float, clean_rewards, group_moments, where_valid
from jaxrl.losses.reduce.parts import part_weights
from jaxrl.losses.reduce.shapes import checked

KIND = "advantage"


@checked
def reinforce_pp(
    rewards: jax.Array, *, valid: jax.Array | None = None, eps: float = 1e-8
) -> jax.Array:
    """REINFORCE++: no group, no critic; the rewards of the whole batch, normalised.

    The paper takes the statistics over tokens of KL-penalised returns. For one reward a sample and
    no penalty that is this, but for the weight of long samples.

    Formula: `(r - mean_batch r) / (std_batch r + eps)`
    Paper: Hu et al. 2025, "REINFORCE++: A Simple and Efficient Approach for Aligning LLMs"

    Args:
      rewards: `[N]`.
      valid: `[N]` bool.
      eps: added to the standard deviation.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    return _whiten(*clean_rewards(rewards, valid), eps)


@checked
def reinforce_pp_baseline(
    rewards: jax.Array,
    group_ids: jax.Array,
    lengths: jax.Array,
    *,
    num_groups: int,
    valid: jax.Array | None = None,
    eps: float = 1e-8,
) -> jax.Array:
    """REINFORCE++ with a baseline: centred by the group, normalised over the tokens of the batch.

    Every token of a sample has the sample's advantage, so a long sample counts more in the
    statistics of the batch, as in the authors' code.

    Formula: `(a - mean a) / sqrt(var a + eps)`, `a = r - mean_group r`, mean and variance over the
      action tokens of the batch
    Paper: Hu et al. 2025, "REINFORCE++: A Simple and Efficient Approach for Aligning LLMs"

    Args:
      rewards: `[N]`.
      group_ids: `[N]` int32.
      lengths: `[N]` action tokens.
      num_groups: static.
      valid: `[N]` bool.
      eps: added to the variance.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    rewards, valid = clean_rewards(rewards, valid)
    _, mean, _ = group_moments(rewards, group_ids, num_groups, valid, 1)
    centred = rewards - mean
    weight = jnp.where(valid, as_float(lengths), 0.0)
    tokens = jnp.sum(weight)
    centred = centred - jnp.sum(weight * centred) / jnp.maximum(tokens, 1.0)
    variance = jnp.sum(weight * jnp.square(centred)) / jnp.maximum(tokens - 1.0, 1.0)
    return where_valid(valid, centred * jax.lax.rsqrt(variance + eps))


@checked
def gdpo(
    reward_parts: jax.Array,
    group_ids: jax.Array,
    *,
    num_groups: int,
    weights: str = "",
    valid: jax.Array | None = None,
    eps: float = 1e-4,
) -> jax.Array:
    """GDPO: several rewards, each normalised in its group before they are added up.

    Adding first would let the reward of largest spread drown the others. Scaling a part, as
    `--reward style=FILE:f*0.5` does, has no effect: each part is divided by its own deviation. Set
    `weights` instead.

    Formula: `whiten_batch(sum_k w_k (r_k - mean_g r_k) / (std_g r_k + eps))`
    Paper: Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization Policy Optimization"

    Args:
      reward_parts: `[N, K]`, in the order of their names.
      group_ids: `[N]` int32.
      num_groups: static.
      weights: w by the name of the part, as `correct=1,format=0.5`; a run leaves out the parts that
        are not named. Empty: all parts, each of weight 1.
      valid: `[N]` bool.
      eps: added to each standard deviation.

    Returns:
      `[N]`, 0 for invalid samples.
    """
    named_weights, count = part_weights(weights), reward_parts.shape[1]
    if named_weights and len(named_weights) != count:
        raise ValueError(
            f"weights={weights!r} names {len(named_weights)} parts, but the reward has {count}"
        )
    valid = clean_rewards(reward_parts[:, 0], valid)[1]

    def normalise(part: jax.Array) -> jax.Array:
        return group_advantages(part, group_ids, num_groups=num_groups, valid=valid, eps=eps)

    parts = jax.vmap(normalise, in_axes=1, out_axes=1)(reward_parts)
    factors = jnp.asarray([*named_weights.values()] or [1.0] * count, parts.dtype)
    return _whiten(parts @ factors, valid, eps)


@checked
def whiten(advantages: jax.Array, *, mask: jax.Array, eps: float = 1e-8) -> jax.Array:
    """Mean 0 and deviation 1 over the action tokens of the whole batch, and over nothing else.

    Formula: `(A - mean A) / (std A + eps)` over `mask`
    Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (common practice)

    Args:
      advantages: `[B, T]` of the global batch.
      mask: `[B, T]`.
      eps: added to the standard deviation.

    Returns:
      `[B, T]`, 0 at masked tokens.
    """
    flat = clean_rewards(advantages.reshape(-1), mask.reshape(-1))
    return _whiten(*flat, eps).reshape(advantages.shape)


def _whiten(x: jax.Array, valid: jax.Array, eps: float) -> jax.Array:
    """Normalised by all valid entries of `[N]`."""
    _, mean, std = group_moments(x, jnp.zeros(x.shape, jnp.int32), 1, valid, 1)
    return where_valid(valid, (x - mean) / (std + eps))
