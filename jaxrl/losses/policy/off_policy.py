"""Objectives for data of another policy: stale, asynchronous, or sampled by another engine.

Three policies appear, all `[B, T]` log-probabilities: `behavior_logp` (recorded by the sampler),
`proximal_logp` (the trainer's own, at the start of the update) and `logp` (now, with gradient).
Calling convention and masking contract as in `jaxrl.losses.policy.objectives`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.divergence.kl import k3
from jaxrl.losses.policy.objectives import Objective, clipped_surrogate
from jaxrl.losses.policy.sequence import sequence_log_ratio
from jaxrl.losses.reduce.masking import (
    as_float,
    bounded_exp,
    constant,
    group_moments,
    indicator,
    row_constant,
    row_mean,
    token_constant,
    where_valid,
)
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def aipo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_high: float = 2.0,
) -> Objective:
    """AIPO: the policy gradient under a truncated importance weight (one-sided, no clip).

    Formula: `-sg(min(pi_t / pi_b,t, clip_high)) A_t log pi_t`
    Paper: Wu et al. 2025, "LlamaRL"; truncation after Ionides 2008

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_high: bound of the weight itself, 2 to 10 in the paper.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `clipped` `[B, T]`.
    """
    r = constant(importance_ratio(logp, behavior_logp))
    loss = -jnp.minimum(r, clip_high) * token_constant(advantages, logp) * as_float(logp)
    return loss, {"ratio": r, "clipped": indicator(r > clip_high)}


@checked
def remix(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    ref_logp: jax.Array,
    proximal_logp: jax.Array,
    kl_coef: float = 0.01,
    convex: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """ReMix: PPO on fresh and replayed rows, held to both the base policy and the previous one.

    Each row's ratio is to the policy that sampled it.

    Formula: `ppo_clip + c (lambda k3(pi, pi_ref) + (1 - lambda) k3(pi, pi_prox))`
    Paper: Liang et al. 2025, "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement
      Finetuning for Large Language Model" (ReMix, KL-convex)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      ref_logp, proximal_logp: `[B, T]`, of the base policy and of the one before this batch.
      kl_coef: c.
      convex: lambda.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `kl_convex` `[B, T]`.
    """
    r = importance_ratio(logp, behavior_logp)
    loss, metrics = clipped_surrogate(r, advantages, clip_low=clip_low, clip_high=clip_high)
    kl = convex * k3(logp, ref_logp) + (1.0 - convex) * k3(logp, proximal_logp)
    return loss + kl_coef * kl, metrics | {"kl_convex": constant(kl)}


@checked
def importance_correction(
    proximal_logp: jax.Array,
    behavior_logp: jax.Array,
    *,
    mask: jax.Array,
    level: str = "token",
    mode: str = "truncate",
    low: float = 0.0,
    high: float = 3.0,
) -> jax.Array:
    """Constant weights that correct any loss for a sampler that differs from the trainer.

    Formula: `w = clip(rho, low, high)` or `rho 1[low <= rho <= high]`, `rho = pi_prox / pi_b`
    Paper: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy Training";
      Liu et al. 2025, "When Speed Kills Stability" (the sequence and mask forms)

    Args:
      proximal_logp, behavior_logp: `[B, T]`.
      mask: `[B, T]`.
      level: `token`, or `sequence` for the product over the row.
      mode: `truncate` clips the weight, `mask` zeroes it outside the bounds.
      low, high: bounds of the weight.

    Returns:
      `[B, T]` at token level (1 at masked tokens), `[B, 1]` at sequence level.
    """
    match level:
        case "token":
            log_ratio = where_valid(mask, as_float(proximal_logp) - as_float(behavior_logp))
        case "sequence":
            log_ratio = sequence_log_ratio(proximal_logp, behavior_logp, mask=mask)
        case _:
            raise ValueError(f"level={level!r} is unknown; choose token or sequence")
    rho = constant(bounded_exp(log_ratio))
    match mode:
        case "truncate":
            return jnp.clip(rho, low, high)
        case "mask":
            return jnp.where((rho >= low) & (rho <= high), rho, 0.0)
        case _:
            raise ValueError(f"mode={mode!r} is unknown; choose truncate or mask")


@checked
def decoupled_ppo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    proximal_logp: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    weight_high: float = float("inf"),
) -> Objective:
    """Decoupled PPO: clips around the proximal policy, corrects for the behaviour policy by weight.

    Formula: `-(pi_prox / pi_b) min(u A, clip(u) A)`, `u = pi / pi_prox`
    Paper: Hilton et al. 2022, "Batch size-invariance for policy optimization"; Fu et al. 2025,
      "AReaL"

    Args:
      logp, behavior_logp, proximal_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low, clip_high: widths as in `ppo_clip`, of `u`.
      weight_high: truncation of the behaviour weight (infinite in the papers).

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` (of `u`) and `weight` `[B, T]`.
    """
    weight = jnp.minimum(constant(importance_ratio(proximal_logp, behavior_logp)), weight_high)
    u = importance_ratio(logp, proximal_logp)
    loss, metrics = clipped_surrogate(u, advantages, clip_low=clip_low, clip_high=clip_high)
    return weight * loss, metrics | {"weight": weight}


@checked
def icepop(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    proximal_logp: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    low: float = 0.5,
    high: float = 5.0,
) -> Objective:
    """IcePop: drops tokens on which trainer and sampler disagree, weights the rest.

    Formula: `-M(k) min(u A, clip(u) A)`, `k = pi_prox / pi_b`, `M(k) = k` in `[low, high]` else 0
    Paper: Ling Team 2025, "Every Step Evolves" (Ring-1T)

    Args:
      logp, behavior_logp, proximal_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low, clip_high: widths as in `ppo_clip`, of `u = pi / pi_prox`.
      low, high: bounds of `k`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `kept` `[B, T]`.
    """
    k = constant(importance_ratio(proximal_logp, behavior_logp))
    kept_tokens = (k >= low) & (k <= high)
    u = importance_ratio(logp, proximal_logp)
    loss, metrics = clipped_surrogate(u, advantages, clip_low=clip_low, clip_high=clip_high)
    return jnp.where(kept_tokens, k, 0.0) * loss, metrics | {"kept": indicator(kept_tokens)}


@checked
def m2po(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    batch_mask: jax.Array,
    threshold: float = 0.04,
) -> Objective:
    """M2PO: of the tokens that PPO could clip, drops the most extreme until log^2 r is small.

    Only tokens whose update moves the ratio further from 1 count, and only they are dropped; a
    token that moves it back always trains. The mean over the rest of `log^2 r` is at most
    `threshold`. The authors' repository finds a cap of `log^2 r` with that mean instead, and drops
    what lies above it; this is Algorithm 1 of the paper.

    Formula: `-K_t r_t A_t`; `K_t = 0` for the largest `log^2 r` of
      `T = {t : A_t > 0 and r_t > 1, or A_t < 0 and r_t < 1}`, the fewest that leave
      `mean_(t in T, kept) log^2 r_t <= threshold`
    Paper: Zheng et al. 2025, "Prosperity before Collapse"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      batch_mask: `[B, T]`, action tokens of the whole batch, over which the mean is.
      threshold: bound of the second moment (nats squared).

    Returns:
      Loss `[B, T]`; metrics `ratio`, `second_moment` (0 outside of T) and `kept` `[B, T]`.
    """
    log_ratio = constant(logp) - constant(behavior_logp)
    advantages = token_constant(advantages, logp)
    region = jnp.asarray(batch_mask, bool) & (jnp.sign(advantages) * log_ratio > 0)
    moment = jnp.where(region, jnp.square(log_ratio), jnp.inf)
    flat = jnp.sort(moment, axis=None)
    finite = jnp.isfinite(flat)
    mean = jnp.cumsum(jnp.where(finite, flat, 0.0)) / jnp.arange(1, flat.size + 1)
    # The running mean of sorted values rises, so the kept tokens are a prefix of the sorted ones.
    count = jnp.sum((mean <= threshold) & finite)
    rank = jnp.argsort(jnp.argsort(moment, axis=None)).reshape(moment.shape)
    kept_tokens = ~region | (rank < count)
    r = importance_ratio(logp, behavior_logp)
    return jnp.where(kept_tokens, -r * advantages, 0.0), {
        "ratio": constant(r),
        "second_moment": jnp.where(region, moment, 0.0),
        "kept": indicator(kept_tokens),
    }


@checked
def opsm(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    threshold: float = 0.05,
) -> Objective:
    """PPO clip under the off-policy sequence mask of DeepSeek-V3.2.

    Formula: `opsm_mask * ppo_clip`
    Paper: DeepSeek-AI 2025, "DeepSeek-V3.2"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      mask: `[B, T]`.
      clip_low, clip_high: widths as in `ppo_clip`.
      threshold: as in `opsm_mask`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `kept` `[B, T]`.
    """
    kept_tokens = opsm_mask(logp, behavior_logp, advantages, mask=mask, threshold=threshold)
    r = importance_ratio(logp, behavior_logp)
    loss, metrics = clipped_surrogate(r, advantages, clip_low=clip_low, clip_high=clip_high)
    kept_tokens = jnp.broadcast_to(kept_tokens, loss.shape)
    return jnp.where(kept_tokens, loss, 0.0), metrics | {"kept": indicator(kept_tokens)}


@checked
def opsm_mask(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    mask: jax.Array,
    threshold: float = 0.05,
) -> jax.Array:
    """Keeps good sequences always, and bad ones only while they are close to on-policy.

    Formula: `A >= 0 or mean_t (log pi_b,t - log pi_t) <= threshold`
    Paper: DeepSeek-AI 2025, "DeepSeek-V3.2"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      mask: `[B, T]`.
      threshold: bound of the mean log-ratio (nats per token).

    Returns:
      Bool of the advantages' shape; True keeps.
    """
    kl = row_mean(mask, constant(behavior_logp) - constant(logp))[:, None]
    return (token_constant(advantages, logp) >= 0) | (kl <= threshold)


@checked
def effective_sample_size(
    logp: jax.Array, behavior_logp: jax.Array, *, mask: jax.Array
) -> jax.Array:
    """The share of a batch that its importance weights leave effective.

    Formula: `(sum_i w_i)^2 / (N sum_i w_i^2)`, `w_i = pi(y_i) / pi_b(y_i)`
    Paper: Kong 1992; Huang et al. 2026, "Stable Asynchrony" (VCPO)

    Args:
      logp, behavior_logp: `[B, T]` of the whole batch.
      mask: `[B, T]`; rows without an action token do not count.

    Returns:
      A scalar in `(0, 1]`, without gradient; 1 for an empty batch.
    """
    log_w = constant(sequence_log_ratio(logp, behavior_logp, mask=mask))[:, 0]
    rows = jnp.any(jnp.asarray(mask, bool), axis=-1)
    # Relative to the largest weight: the ratio of sums is unchanged and nothing overflows.
    w = jnp.where(rows, jnp.exp(log_w - jnp.max(jnp.where(rows, log_w, -jnp.inf))), 0.0)
    count = jnp.sum(rows)
    return jnp.where(count > 0, jnp.sum(w) ** 2 / jnp.maximum(count * jnp.sum(w**2), 1e-30), 1.0)


@checked
def vcpo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    rewards: jax.Array,
    *,
    batch_mask: jax.Array,
    group_ids: jax.Array,
    weight_high: float = 8.0,
    power: float = 0.5,
    baseline: str = "variance",
    scale: str = "group",
) -> Objective:
    """VCPO: REINFORCE under truncated sequence weights, its variance reduced in two ways.

    The learning rate of the update is multiplied by a power of the batch's effective sample size,
    and the baseline is the one of least variance off-policy. Both take the weights before they are
    truncated. The baseline needs the squared gradient norm of each trajectory at the parameters,
    which would take a backward pass a trajectory; its number of tokens stands for it, as in `opo`.

    Formula: `-sg(min(w_i, weight_high)) (R_i - b_g) / std_g log pi_t`, `w = pi(y) / pi_b(y)`,
      `b_g = sum_g w^2 |y| R / sum_g w^2 |y|`; learning rate times `ESS^power`
    Paper: Huang et al. 2026, "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs"

    Args:
      logp, behavior_logp: `[B, T]`.
      rewards: `[B]`.
      batch_mask: `[B, T]`, action tokens of the whole batch.
      group_ids: `[B]` int32 in `[0, B)`.
      weight_high: bound of the sequence weights.
      power: exponent of the effective sample size: 0.5 as released, 1 linear, 0 for a fixed rate.
      baseline: `variance`, or `mean` for the group's plain mean.
      scale: `group` divides by the standard deviation of the group's rewards (by n, as released;
        where it is 0 nothing is divided), `none` does not.

    Returns:
      Loss `[B, T]` (reduce with `seq-mean-token-mean`, as released); metrics `weight`, `baseline`
      `[B]` and `lr_scale`, a scalar.
    """
    if baseline not in ("variance", "mean"):
        raise ValueError(f"baseline={baseline!r} is unknown; choose variance or mean")
    if scale not in ("group", "none"):
        raise ValueError(f"scale={scale!r} is unknown; choose group or none")
    acts = jnp.any(jnp.asarray(batch_mask, bool), axis=-1)
    log_w = constant(sequence_log_ratio(logp, behavior_logp, mask=batch_mask))[:, 0]
    count, rewards = len(rewards), row_constant(rewards, logp)
    share = jnp.sum(jnp.asarray(batch_mask, bool), axis=-1).astype(log_w.dtype)
    if baseline == "variance":
        # relative to the group's largest weight, which leaves the mean as it is
        top = jax.ops.segment_max(jnp.where(acts, log_w, -jnp.inf), group_ids, count)[group_ids]
        share = share * jnp.exp(2.0 * jnp.where(acts, log_w - top, 0.0))
    else:
        share = jnp.sign(share)
    earned = jax.ops.segment_sum(jnp.where(acts, share * rewards, 0.0), group_ids, count)
    b = (earned / jnp.maximum(jax.ops.segment_sum(share, group_ids, count), 1e-30))[group_ids]
    advantages = jnp.where(acts, rewards - b, 0.0)
    if scale == "group":
        _, _, std = group_moments(jnp.where(acts, rewards, 0.0), group_ids, count, acts, 0)
        advantages = advantages / jnp.where(std > 1e-8, std, 1.0)
    w = jnp.minimum(bounded_exp(log_w), weight_high)
    effective = effective_sample_size(logp, behavior_logp, mask=batch_mask)
    loss = -(w * advantages)[:, None] * as_float(logp)
    return loss, {"weight": w, "baseline": b, "lr_scale": effective**power}
