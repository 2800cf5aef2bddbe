"""Policy objectives on tokens: the policy gradient and its clipped surrogates.

Every policy objective of this package has one shape:

    f(logp, behavior_logp, advantages, *, ...) -> (per_token_loss [B, T], metrics)

`logp [B, T]` carries the gradient; `behavior_logp [B, T]` was recorded by the sampler; `advantages`
are `[B, T]`, or `[B, 1]` for one a sequence. Losses are minimised and never reduced; metrics are
unreduced `[B, T]` or `[B]` arrays without gradient. Further arguments go by the same names
everywhere: `proximal_logp`, `ref_logp`, `mask`, `entropy`, `rewards`, `group_ids`, `version_gap`.
Masked entries must hold finite numbers (see `losses.masking`).
"""

import jax
import jax.numpy as jnp

from losses import divergence
from losses.masking import as_float
from losses.masking import ratio as importance_ratio

Objective = tuple[jax.Array, dict[str, jax.Array]]


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
    return -_const(advantages) * as_float(logp), {}


def ppo_clip(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """PPO's clipped surrogate; unequal bounds give DAPO's clip-higher.

    Formula: `-min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)`, `r_t = pi_t / pi_b,t`
    Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms"

    Args:
      logp: `[B, T]`.
      behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low: how far the ratio may fall below 1.
      clip_high: how far it may rise above 1.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `clipped_low`, `clipped_high` `[B, T]`.
    """
    r, advantages = importance_ratio(logp, behavior_logp), _const(advantages)
    loss = -jnp.minimum(r * advantages, _clip(r, clip_low, clip_high) * advantages)
    return loss, _clip_metrics(r, advantages, clip_low, clip_high)


def ppo_dual_clip(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> Objective:
    """PPO clip with a floor on the objective of bad actions, whose ratio PPO leaves unbounded.

    Formula: `-max(min(r A, clip(r) A), c A)` where `A < 0`, PPO clip elsewhere
    Paper: Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep RL"

    Args:
      logp: `[B, T]`.
      behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low: lower clip width.
      clip_high: upper clip width.
      dual_clip: `c > 1`, the largest ratio a negative advantage is multiplied by.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `clipped_dual` `[B, T]`.
    """
    if dual_clip <= 1.0:
        raise ValueError(f"dual_clip={dual_clip} must exceed 1 (3.0 is usual)")
    loss, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    ceiling = -dual_clip * _const(advantages)
    floored = (_const(advantages) < 0) & (loss > ceiling)
    return jnp.where(floored, ceiling, loss), metrics | {"clipped_dual": _indicator(floored)}


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
      logp: `[B, T]`.
      behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      clip_low: lower clip width.
      clip_high: upper clip width.
      delta: upper bound of the ratio, above `1 + clip_high`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    if delta <= 1.0 + clip_high:
        raise ValueError(f"delta={delta} must exceed 1 + clip_high = {1.0 + clip_high}")
    r, advantages = importance_ratio(logp, behavior_logp), _const(advantages)
    bounded = jnp.minimum(r, delta) * advantages
    loss = -jnp.minimum(bounded, _clip(r, clip_low, clip_high) * advantages)
    return loss, _clip_metrics(r, advantages, clip_low, clip_high)


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

    Formula: `ppo_clip + beta k3`; advantages (group, group), aggregation `seq-mean-token-mean`
    Paper: Shao et al. 2024, "DeepSeekMath"

    Args:
      logp: `[B, T]`.
      behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      ref_logp: `[B, T]`; needed when `beta` is nonzero.
      clip_low: lower clip width.
      clip_high: upper clip width.
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
    return loss + beta * kl, metrics | {"kl": jax.lax.stop_gradient(kl)}


def _const(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(as_float(x))


def _clip(r: jax.Array, clip_low: float, clip_high: float) -> jax.Array:
    return jnp.clip(r, 1.0 - clip_low, 1.0 + clip_high)


def _indicator(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x.astype(jnp.float32))


def _clip_metrics(
    r: jax.Array, advantages: jax.Array, clip_low: float, clip_high: float
) -> dict[str, jax.Array]:
    return {
        "ratio": jax.lax.stop_gradient(r),
        "clipped_low": _indicator((r < 1.0 - clip_low) & (advantages < 0)),
        "clipped_high": _indicator((r > 1.0 + clip_high) & (advantages > 0)),
    }
