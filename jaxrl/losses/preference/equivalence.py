"""Preferences between sets of answers, whose members count as equals.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`; the rows of a group
must be in the same call.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.reduce.masking import as_float, constant, indicator, row_constant, row_sum
from jaxrl.losses.reduce.shapes import checked

KIND = "preference"


@checked
def gepo(
    logp: jax.Array,
    ref_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    beta: float = 0.1,
    equality: float = 1.0,
    threshold: float = 0.5,
) -> Objective:
    """GEPO: equivalent answers are preferred to the others of their group, and are equally good.

    One preference a group, of the mean implicit reward of those that pass to that of the others,
    and a penalty on the variance among those that pass. A group without others has the penalty
    alone. The stored text of the paper has its equations in words: that the variance is of the
    scaled rewards is our reading.

    Formula: `-log sigmoid(mean_(i in E) s_i - mean_(j not in E) s_j) + lambda var_(i in E) s_i`,
      `s = beta log(pi(y) / pi_ref(y))`, E the answers of the group that pass
    Paper: Wu et al. 2025, "On-Policy Optimization with Group Equivalent Preference for
      Multi-Programming Language Understanding" (section 3.2)

    Args:
      logp, ref_logp: `[B, T]`.
      rewards: `[B]`.
      mask: `[B, T]`; rows without action tokens do not count.
      group_ids: `[B]` int32 in `[0, B)`.
      beta: of the implicit rewards.
      equality: lambda.
      threshold: least reward of an equivalent answer.

    Returns:
      Loss `[B, T]`, equal along a row and 0 on rows that are not equivalent; its mean over the rows
      of a group is the formula. Metrics `implicit` `[B]`, the implicit rewards, and `spread` `[B]`,
      their squared distance from the mean of E.
    """
    acts = jnp.any(jnp.asarray(mask, bool), axis=-1)
    passed = acts & (row_constant(rewards, logp) >= threshold)
    failed = acts & ~passed
    score = beta * row_sum(mask, as_float(logp) - constant(ref_logp))
    same = group_ids[:, None] == group_ids[None, :]

    def count(rows: jax.Array) -> jax.Array:
        return jnp.sum(same & rows[None, :], axis=1).astype(score.dtype)

    equals, failures = jnp.maximum(count(passed), 1.0), jnp.maximum(count(failed), 1.0)

    def mean_of(rows: jax.Array, size: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(same & rows[None, :], score[None, :], 0.0), axis=1) / size

    mean = mean_of(passed, equals)
    preference = -jax.nn.log_sigmoid(mean - mean_of(failed, failures))
    preference = jnp.where(count(failed) > 0, preference, 0.0)
    spread = jnp.square(score - mean)
    loss = jnp.where(passed, count(acts) / equals * (preference + equality * spread), 0.0)
    metrics = {
        "implicit": constant(score),
        "spread": constant(jnp.where(passed, spread, 0.0)),
    }
    return jnp.broadcast_to(loss[:, None], logp.shape), metrics


@checked
def oorl(
    logp: jax.Array,
    behavior_logp: jax.Array,
    ref_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    weight: float = 0.01,
    beta: float = 0.1,
    equality: float = 1.0,
    threshold: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """OORL: the policy gradient on the verdicts, and GEPO on groups of equivalent answers.

    Reduce with `seq-mean-token-mean`, as GEPO's loss is one of sequences.

    Formula: `ppo_clip + w gepo`
    Paper: Wu et al. 2025, "On-Policy Optimization with Group Equivalent Preference for
      Multi-Programming Language Understanding" (section 3.3: w is 0.01)

    Args:
      logp, behavior_logp, ref_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      rewards: `[B]`.
      mask: `[B, T]`.
      group_ids: `[B]` int32 in `[0, B)`.
      weight: w.
      beta, equality, threshold: of `gepo`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `gepo`, and `equivalent` `[B]`, whether the row
      passed.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    settings = {"beta": beta, "equality": equality, "threshold": threshold}
    group, group_metrics = gepo(logp, ref_logp, rewards, mask=mask, group_ids=group_ids, **settings)
    passed = row_constant(rewards, logp) >= threshold
    return policy + weight * group, metrics | group_metrics | {"equivalent": indicator(passed)}
