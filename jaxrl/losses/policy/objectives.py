"""Policy objectives on tokens: the policy gradient and its clipped surrogates.

Every policy objective of this package has one shape:

    f(logp, behavior_logp, advantages, *, ...) -> (per_token_loss [B, T], metrics)

`logp [B, T]` carries the gradient; `behavior_logp [B, T]` was recorded by the sampler; `advantages`
are `[B, T]`, or `[B, 1]` for one a sequence. Losses are minimised and never reduced; metrics are
unreduced `[B, T]` or `[B]` arrays without gradient, but for the scalar `lr_scale`, by which the
update's learning rate is multiplied. Further arguments go by the same names everywhere:
`proximal_logp`, `ref_logp`, `mask`, `entropy`, `rewards`, `group_ids`, `lag`, and where a
statistic is of the whole batch, `batch_mask` in place of `mask`.
Masked entries must hold finite numbers (see `jaxrl.losses.reduce.masking`).
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.divergence import kl as divergence
from jaxrl.losses.reduce.masking import as_float, constant, indicator, token_constant
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"

Objective = tuple[jax.Array, dict[str, jax.Array]]


@checked
def reinforce(logp: jax.Array, advantages: jax.Array) -> Objective:
    """The policy gradient itself, for data sampled by the current policy.

    Formula: `-A_t log pi_t`
    Paper: Williams 1992, "Simple statistical gradient-following algorithms for connectionist RL"

    Args:
      logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.

    Returns:
      Loss `[B, T]` and no metrics.
    """
    return -token_constant(advantages, logp) * as_float(logp), {}


@checked
def ppo_clip(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """PPO's clipped surrogate; unequal bounds give clip-higher.

    Formula: `-min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)`, `r_t = pi_t / pi_b,t`
    Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low: how far the ratio may fall below 1.
      clip_high: how far it may rise above 1.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `clipped_low`, `clipped_high` `[B, T]`.
    """
    r = importance_ratio(logp, behavior_logp)
    return clipped_surrogate(r, advantages, clip_low=clip_low, clip_high=clip_high)


@checked
def ppo_dual_clip(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> Objective:
    """PPO clip with a floor under bad actions, whose ratio PPO leaves unbounded.

    Formula: `-max(min(r A, clip(r) A), dual_clip A)` where `A < 0`, `ppo_clip` elsewhere
    Paper: Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep RL"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low, clip_high: widths as in `ppo_clip`.
      dual_clip: above 1; the largest ratio a negative advantage is multiplied by.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `clipped_dual` `[B, T]`.
    """
    if dual_clip <= 1.0:
        raise ValueError(f"dual_clip={dual_clip} must exceed 1 (3.0 is usual)")
    loss, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    ceiling = -dual_clip * constant(advantages)
    floored = (constant(advantages) < 0) & (loss > ceiling)
    return jnp.where(floored, ceiling, loss), metrics | {"clipped_dual": indicator(floored)}


@checked
def ppo_two_sided(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    delta: float = 4.0,
) -> Objective:
    """PPO clip whose unclipped ratio is bounded by `delta` as well.

    Formula: `-min(min(r_t, delta) A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)`
    Paper: Prime Intellect 2025, "INTELLECT-2"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low, clip_high: widths as in `ppo_clip`.
      delta: upper bound of the ratio, above `1 + clip_high`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    if delta <= 1.0 + clip_high:
        raise ValueError(f"delta={delta} must exceed 1 + clip_high = {1.0 + clip_high}")
    r = importance_ratio(logp, behavior_logp)
    clipped, metrics = clipped_surrogate(r, advantages, clip_low=clip_low, clip_high=clip_high)
    bounded = -delta * constant(advantages)
    # Only a negative advantage can make the delta bound bind: there the loss grows with r.
    return jnp.where(constant(advantages) < 0, jnp.minimum(clipped, bounded), clipped), metrics


@checked
def ppo_kl(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    beta: float | jax.Array = 1.0,
) -> Objective:
    """PPO with a KL penalty to the behaviour policy instead of a clip.

    The KL is `KL(pi_b, pi)` estimated by `r - 1 - log r`, which is unbiased in value and gradient
    for tokens drawn from `pi_b`. Keep `beta` fixed, or move it by `adaptive_kl_coefficient`.

    Formula: `-r_t A_t + beta (r_t - 1 - log r_t)`
    Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (section 4)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      beta: weight of the penalty; a scalar.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `kl` `[B, T]`.
    """
    r = importance_ratio(logp, behavior_logp)
    kl = r - 1.0 - (as_float(logp) - constant(behavior_logp))
    return -r * token_constant(advantages, logp) + beta * kl, {
        "ratio": constant(r),
        "kl": constant(kl),
    }


def adaptive_kl_coefficient(
    coefficient: jax.Array,
    kl: jax.Array,
    *,
    target: float,
    tolerance: float = 1.5,
    factor: float = 2.0,
) -> jax.Array:
    """The next `beta` of `ppo_kl`: up when the measured KL overshoots the target, down when under.

    Formula: `beta * factor if kl > tolerance target; beta / factor if kl < target / tolerance`
    Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (section 4)

    Args:
      coefficient: scalar, the current beta.
      kl: scalar, the mean KL of the last update (nats per token).
      target: the KL aimed at.
      tolerance: width of the band in which beta stays.
      factor: multiplier at its edges.

    Returns:
      A scalar.
    """
    raised = jnp.where(kl > tolerance * target, coefficient * factor, coefficient)
    return jnp.where(kl < target / tolerance, coefficient / factor, raised)


def proportional_kl_coefficient(
    coefficient: jax.Array, kl: jax.Array, *, target: float, rate: float = 0.1, bound: float = 0.2
) -> jax.Array:
    """The next coefficient of a KL-in-reward penalty, by a proportional controller.

    Formula: `beta (1 + rate clip(kl / target - 1, -bound, bound))`
    Paper: Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences"

    Args:
      coefficient: scalar, the current beta.
      kl: scalar, the measured KL to the reference.
      target: the KL aimed at, in the units of `kl`.
      rate: step size of the controller (samples over horizon in the paper).
      bound: largest relative error acted upon.

    Returns:
      A scalar.
    """
    return coefficient * (1.0 + rate * jnp.clip(kl / target - 1.0, -bound, bound))


@checked
def grpo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    ref_logp: jax.Array | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.0,
) -> Objective:
    """GRPO: PPO clip on group-normalised advantages, k3 to the reference inside the loss.

    Formula: `ppo_clip + beta k3`; advantages (group, group); aggregation `seq-mean-token-mean`
    Paper: Shao et al. 2024, "DeepSeekMath"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      ref_logp: `[B, T]`; needed when `beta` is nonzero.
      clip_low, clip_high: widths as in `ppo_clip`.
      beta: weight of the KL term (0.04 in the paper; 0 drops it).

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`, and `kl` when `beta` is nonzero.
    """
    loss, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    if beta == 0.0:
        return loss, metrics
    if ref_logp is None:
        raise ValueError(f"beta={beta} needs ref_logp [B, T]; pass it or set beta=0")
    kl = divergence.k3(logp, ref_logp)
    return loss + beta * kl, metrics | {"kl": constant(kl)}


@checked
def dr_grpo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """Dr. GRPO: GRPO without the division by the group's deviation nor by the sequence's length.

    Formula: `ppo_clip`; advantages (group, none); aggregation `seq-mean-token-sum-norm`
    Paper: Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    return ppo_clip(logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high)


@checked
def dapo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> Objective:
    """DAPO: clip-higher and a token mean; groups without signal are resampled before the loss.

    Formula: `ppo_clip` with `clip_high > clip_low`; advantages (group, group); `token-mean`
    Paper: Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    return ppo_clip(logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high)


@checked
def gpg(logp: jax.Array, advantages: jax.Array) -> Objective:
    """GPG: the bare policy gradient on `advantages.gpg_advantages`, no ratio, no clip, no KL.

    Formula: `-A_t log pi_t`; aggregation `token-mean`
    Paper: Chu et al. 2025, "GPG: A Simple and Strong RL Baseline for Model Reasoning"

    Args:
      logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.

    Returns:
      Loss `[B, T]` and no metrics.
    """
    return reinforce(logp, advantages)


@checked
def clipped_surrogate(
    r: jax.Array, advantages: jax.Array, *, clip_low: float = 0.2, clip_high: float = 0.2
) -> Objective:
    """The pessimistic minimum on a ratio of the caller's making (token, sequence or decoupled).

    Formula: `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`
    Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms"

    Args:
      r: `[B, T]` or `[B, 1]`, with gradient.
      advantages: `[B, T]` or `[B, 1]`, with the T of `r`.
      clip_low, clip_high: widths around 1.

    Returns:
      Loss and metrics `ratio`, `clipped_low`, `clipped_high`, of the shape of `r`.
    """
    advantages = token_constant(advantages, r)
    loss = -jnp.minimum(r * advantages, jnp.clip(r, 1.0 - clip_low, 1.0 + clip_high) * advantages)
    return loss, {
        "ratio": constant(r),
        "clipped_low": indicator((r < 1.0 - clip_low) & (advantages < 0)),
        "clipped_high": indicator((r > 1.0 + clip_high) & (advantages > 0)),
    }
