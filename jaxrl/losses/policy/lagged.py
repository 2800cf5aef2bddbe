"""Objectives that know how old each token is: `lag`, updates between its sampling and its use.

Conventions as in `jaxrl.losses.policy.objectives`; policies as in `jaxrl.losses.policy.off_policy`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.policy.off_policy import decoupled_ppo
from jaxrl.losses.reduce.masking import as_float, constant
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def a3po(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    lag: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    weight_high: float = float("inf"),
) -> Objective:
    """A-3PO: decoupled PPO whose proximal policy is interpolated, which saves a forward pass.

    The policy before this update is one update behind the one that it makes, and the sampler is
    `lag + 1` behind. On-policy tokens have the sampler as their proximal policy, and with the lag
    it moves towards the current one. Where a batch is trained on in several updates, it is the
    policy before each.

    Formula: `log pi_prox = log pi_b + lag / (lag + 1) (log pi - log pi_b)`, then `decoupled_ppo`
    Paper: Li et al. 2025, "A-3PO: Accelerating Asynchronous LLM Training with Staleness-aware
      Proximal Policy Approximation"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      lag: `[B, T]` int32, updates since each token was sampled.
      clip_low, clip_high, weight_high: see `decoupled_ppo`.

    Returns:
      Loss `[B, T]`; the metrics of `decoupled_ppo`.
    """
    sampled = as_float(behavior_logp)
    age = jnp.asarray(lag, sampled.dtype)
    share = age / (age + 1.0)
    proximal = constant(sampled + share * (as_float(logp) - sampled))
    return decoupled_ppo(
        logp,
        behavior_logp,
        advantages,
        proximal_logp=proximal,
        clip_low=clip_low,
        clip_high=clip_high,
        weight_high=weight_high,
    )


@checked
def lag_weighted_ppo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    lag: jax.Array,
    tau: float = 4.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """PPO whose tokens weigh less the older they are: a baseline for corrections by ratio.

    Formula: `-exp(-lag / tau) min(r A, clip(r) A)`, `r = pi / pi_b`
    Paper: after Zhang et al. 2015, "Staleness-Aware Async-SGD for Distributed Deep Learning", which
      lowers learning rates with staleness

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      lag: `[B, T]` int32, updates since each token was sampled.
      tau: updates in which a weight falls to `1 / e`.
      clip_low, clip_high: see `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `weight` `[B, T]`.
    """
    weight = jnp.exp(-jnp.asarray(lag, as_float(logp).dtype) / tau)
    loss, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    return weight * loss, metrics | {"weight": weight}
