"""Objectives that regress the policy onto a target: mirror descent, soft values, classification.

None needs an importance ratio or a clip: each moves the sequence's log-ratio `d = log pi(y) - log
pi_b(y)` to what its reward warrants, and so is valid for data of any policy. Calling convention as
in `jaxrl.losses.policy.objectives`; every function puts the sequence's loss on each token of its
row (reduce with `seq-mean-token-mean`). Functions that take `group_ids` couple the rows of a
group, which must be in the same call; a row without action tokens belongs to no group.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective
from jaxrl.losses.policy.sequence import sequence_log_ratio
from jaxrl.losses.reduce.masking import (
    as_float,
    bounded_exp,
    constant,
    row_constant,
    row_sum,
    token_constant,
)
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def kimi_opmd(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    tau: float = 0.1,
) -> Objective:
    """Online policy mirror descent, Kimi k1.5: the advantage regressed on the log-ratio.

    Its gradient is the paper's, `A grad log pi - tau / 2 grad d^2`, negated.

    Formula: `(A - tau d)^2 / (2 tau)`, `A = r - mean r`
    Paper: Kimi Team 2025, "Kimi k1.5: Scaling Reinforcement Learning with LLMs"

    Args:
      logp, behavior_logp: `[B, T]`; the latter is the policy of the last iteration.
      advantages: `[B, 1]`, group-centred and unscaled.
      mask: `[B, T]`.
      tau: strength of the KL to the last iteration's policy.

    Returns:
      Loss `[B, T]`, equal along a row; metric `log_ratio` `[B]`.
    """
    d = sequence_log_ratio(logp, behavior_logp, mask=mask)
    return _spread(jnp.square(token_constant(advantages, logp) - tau * d) / (2.0 * tau), d, logp)


@checked
def opmd(logp: jax.Array, advantages: jax.Array, *, tau: float = 1.0) -> Objective:
    """OPMD's mean form: one step from the behaviour policy, where the penalty only scales the step.

    Formula: `-A_t log pi_t / (1 + tau)`
    Paper: Pan et al. 2025, "Trinity-RFT" (OPMD)

    Args:
      logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`: `r - mean r`, or `r - soft value` (`soft_advantages`).
      tau: strength of the regularisation.

    Returns:
      Loss `[B, T]` and no metrics.
    """
    return -token_constant(advantages, logp) * as_float(logp) / (1.0 + tau), {}


@checked
def opmd_pairwise(
    logp: jax.Array,
    behavior_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    tau: float = 1.0,
) -> Objective:
    """OPMD's pairwise form: within a group `r - tau d` must agree; no partition function.

    Scaled so that the on-policy gradient is that of REINFORCE with the group's mean as baseline.

    Formula: `sum_j (a_i - a_j)^2 / (4 tau n)`, `a = r - tau d`
    Paper: Pan et al. 2025, "Trinity-RFT" (OPMD, pairwise)

    Args:
      logp, behavior_logp: `[B, T]`.
      rewards: `[B]`.
      mask: `[B, T]`.
      group_ids: `[B]` int32 in `[0, B)`.
      tau: strength of the regularisation.

    Returns:
      Loss `[B, T]`, equal along a row; metric `log_ratio` `[B]`.
    """
    d = sequence_log_ratio(logp, behavior_logp, mask=mask)
    a = row_constant(rewards, logp)[:, None] - tau * d
    together = _together(mask, group_ids)
    count = jnp.maximum(jnp.sum(together, axis=1, keepdims=True), 1)
    squares = jnp.sum(jnp.where(together, jnp.square(a - a.T), 0.0), axis=1, keepdims=True)
    return _spread(squares / (4.0 * tau * count), d, logp)


@checked
def oapl(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    beta: float = 1.0,
) -> Objective:
    """OAPL: regresses the log-ratio to a lagged sampler onto the optimal advantage.

    Formula: `(beta d - A)^2`, `A = r - V`, `V = beta_1 log mean exp(r / beta_1)`
    Paper: Ritter et al. 2026, "LLMs Can Learn to Reason Via Off-Policy RL"; used by Databricks
      2026, "KARL: Knowledge Agents via Reinforcement Learning"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, 1]` from `advantages.soft_advantages`.
      mask: `[B, T]`.
      beta: weight of the log-ratio.

    Returns:
      Loss `[B, T]`, equal along a row; metric `log_ratio` `[B]`.
    """
    d = sequence_log_ratio(logp, behavior_logp, mask=mask)
    return _spread(jnp.square(beta * d - token_constant(advantages, logp)), d, logp)


@checked
def pacs(
    logp: jax.Array,
    behavior_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    beta: float = 1.0,
    balanced: bool = True,
) -> Objective:
    """PACS: the outcome as a label, the policy's own leave-one-out score as the classifier's logit.

    The score is relative to the policy that sampled, so it is 0 at the first update on a batch.

    Formula: `w_i (-r log sigmoid(psi) - (1 - r) log sigmoid(-psi))`,
      `psi_i = s_i - mean_(j != i) s_j`, `s = beta sum_t log(pi_t / pi_b,t)`,
      `w_i = n_g / (classes of g * rows of g with i's reward)`
    Paper: Li et al. 2025, "Implicit Actor Critic Coupling via a Supervised Learning Framework"

    Args:
      logp, behavior_logp: `[B, T]`.
      rewards: `[B]` in `[0, 1]`.
      mask: `[B, T]`.
      group_ids: `[B]` int32 in `[0, B)`.
      beta: scale of the score.
      balanced: weight the classes of each prompt equally, as in the released scripts; else
        `w = 1`.

    Returns:
      Loss `[B, T]`, equal along a row; metrics `score` (psi) and `weight` `[B]`.
    """
    score = beta * sequence_log_ratio(logp, behavior_logp, mask=mask)
    together = _together(mask, group_ids)
    peer_mask = together & ~jnp.eye(len(together), dtype=bool)
    total = jnp.sum(jnp.where(peer_mask, score.T, 0.0), axis=1, keepdims=True)
    psi = score - total / jnp.maximum(jnp.sum(peer_mask, axis=1, keepdims=True), 1)
    label = row_constant(rewards, logp)[:, None]
    weight = jnp.ones_like(label)
    if balanced:
        alike = jnp.maximum(jnp.sum(together & (label == label.T), axis=1, keepdims=True), 1)
        classes = jnp.sum(jnp.where(together, 1.0 / alike.T, 0.0), axis=1, keepdims=True)
        size = jnp.sum(together, axis=1, keepdims=True)
        weight = jnp.where(size > 0, size / (jnp.maximum(classes, 1.0) * alike), 1.0)
    loss = -label * jax.nn.log_sigmoid(psi) - (1.0 - label) * jax.nn.log_sigmoid(-psi)
    return jnp.broadcast_to(weight * loss, logp.shape), {
        "score": constant(psi[:, 0]),
        "weight": weight[:, 0],
    }


@checked
def distributional_pg(
    logp: jax.Array,
    behavior_logp: jax.Array,
    ref_logp: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    beta: float = 1.0,
    log_z: float | jax.Array = 0.0,
) -> Objective:
    """Distributional policy gradient: forward KL to the target that KL-regularised RL implies.

    Formula: `-sg(p(y) / q(y)) log pi_t`, `p(y) = pi_ref(y) exp(r / beta) / Z`
    Paper: Parshakova et al. 2019, "Distributional Reinforcement Learning for Energy-Based
      Sequential Models"; Korbak et al. 2022, "RL with KL penalties is better viewed as Bayesian
      inference"

    Args:
      logp, behavior_logp, ref_logp: `[B, T]`; `q` is the behaviour policy.
      rewards: `[B]`.
      mask: `[B, T]`.
      beta: temperature of the target.
      log_z: log of its partition function (estimate it as `log mean exp(log p~ - log q)`).

    Returns:
      Loss `[B, T]` (reduce with `seq-mean-token-sum`); metric `weight` `[B]`.
    """
    target = row_sum(mask, constant(ref_logp) - constant(behavior_logp))
    weight = bounded_exp(target + row_constant(rewards, logp) / beta - log_z)
    return -weight[:, None] * as_float(logp), {"weight": weight}


def _spread(loss: jax.Array, log_ratio: jax.Array, logp: jax.Array) -> Objective:
    return jnp.broadcast_to(loss, logp.shape), {"log_ratio": constant(log_ratio[:, 0])}


def _together(mask: jax.Array, group_ids: jax.Array) -> jax.Array:
    """`[B, B]`: rows i and j both act and answer the same prompt."""
    acts = jnp.any(jnp.asarray(mask, bool), axis=-1)
    return (group_ids[:, None] == group_ids[None, :]) & acts[:, None] & acts[None, :]
