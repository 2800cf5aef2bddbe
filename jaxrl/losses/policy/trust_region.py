"""Objectives whose trust region is a divergence of the sampled token, in place of the ratio's clip.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective
from jaxrl.losses.reduce.masking import as_float, constant, indicator, token_constant
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def dppo_tv(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    threshold_low: float = 0.15,
    threshold_high: float = 0.15,
    weight_high: float = 10.0,
) -> Objective:
    """DPPO with the binary total variation as trust region, in place of the ratio's clip.

    A token is masked if its update moves the policy away from the behaviour policy and the distance
    already exceeds the threshold: `threshold_high` where the probability has risen, `threshold_low`
    where it has fallen. The truncation of the weight is the authors' code's (10; slime's is 20).

    Formula: `-M_t sg(min(r_t, weight_high)) A_t log pi_t`, `M = 0` if `A (r - 1) > 0` and
      `|pi_t - pi_b,t| > threshold`
    Paper: Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      threshold_low, threshold_high: in probability.
      weight_high: bound of the importance weight.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `divergence`, `masked` `[B, T]`.
    """
    p, b = jnp.exp(constant(logp)), jnp.exp(constant(behavior_logp))
    bounds = (threshold_low, threshold_high, weight_high)
    return _divergence_masked(logp, behavior_logp, advantages, jnp.abs(p - b), *bounds)


@checked
def dppo_kl(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    threshold_low: float = 0.05,
    threshold_high: float = 0.05,
    weight_high: float = 10.0,
) -> Objective:
    """DPPO with the binary KL of the sampled token as trust region; the rest as in `dppo_tv`.

    Formula: `-M_t sg(min(r_t, weight_high)) A_t log pi_t`, `M` as in `dppo_tv` on
      `D = b log(b / p) + (1 - b) log((1 - b) / (1 - p))`
    Paper: Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning"

    Args:
      logp, behavior_logp: `[B, T]`; `p = exp(logp)`, `b = exp(behavior_logp)`.
      advantages: `[B, T]` or `[B, 1]`.
      threshold_low, threshold_high: in nats.
      weight_high: bound of the importance weight.

    Returns:
      Loss `[B, T]`; metrics `ratio`, `divergence`, `masked` `[B, T]`.
    """
    log_p, log_b = constant(logp), constant(behavior_logp)
    rest_p, rest_b = _log_rest(log_p), _log_rest(log_b)
    divergence = jnp.exp(log_b) * (log_b - log_p) + jnp.exp(rest_b) * (rest_b - rest_p)
    bounds = (threshold_low, threshold_high, weight_high)
    return _divergence_masked(logp, behavior_logp, advantages, divergence, *bounds)


def _divergence_masked(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    divergence: jax.Array,
    threshold_low: float,
    threshold_high: float,
    weight_high: float,
) -> Objective:
    r = constant(importance_ratio(logp, behavior_logp))
    advantages = token_constant(advantages, logp)
    threshold = jnp.where(r > 1.0, threshold_high, threshold_low)
    masked = (advantages * (r - 1.0) > 0) & (divergence > threshold)
    weight = jnp.where(masked, 0.0, jnp.minimum(r, weight_high))
    return -weight * advantages * as_float(logp), {
        "ratio": r,
        "divergence": divergence,
        "masked": indicator(masked),
    }


def _log_rest(log_p: jax.Array) -> jax.Array:
    """`log(1 - p)`, kept finite at `p = 1`."""
    return jnp.log(jnp.maximum(-jnp.expm1(jnp.minimum(log_p, 0.0)), 1e-30))
