"""Divergences between the policy and a reference: sampled estimators and full-vocabulary forms.

The estimators see one sampled token each. With `d = log pi - log pi_ref` at a token drawn from `pi`
(on-policy), as an *estimate of KL(pi || pi_ref)* and as a *loss term whose gradient is followed*:

| name            | value              | bias of value | expected gradient of the term        |
|-----------------|--------------------|---------------|--------------------------------------|
| `k1`            | `d`                | none          | 0: it says nothing about the KL      |
| `k2`            | `d^2 / 2`          | O(d^3)        | of KL(pi, pi_ref), exactly           |
| `k3`            | `e^-d - 1 + d`     | none          | of KL(pi_ref, pi), the forward KL    |
| `abs_`          | `|d|`              | not a KL      | of the L1 distance of pi and pi_ref  |
| `k1_st`/`k3_st` | as k1, k3          | none          | of KL(pi, pi_ref), through k2        |
| `k3_importance` | `r (e^-d - 1 + d)` | none, off-policy too | of KL(pi, pi_ref), off-policy too |

In the *reward* (under stop-gradient) k1 and k3 are both unbiased and either is right; as a *loss
term* use k2, a straight-through form, or the full-vocabulary KL. All map `[...]` to `[...]`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, bounded_exp, constant, expectation
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "divergence"


@checked
def k1(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """The plain log-ratio: unbiased value, high variance, zero expected gradient.

    Formula: `log pi - log pi_ref`
    Paper: Schulman 2020, "Approximating KL Divergence"

    Args:
      logp: `[...]` log-probabilities of the sampled tokens under the policy (nats).
      ref_logp: `[...]` the same under the reference; no gradient flows into it.

    Returns:
      `[...]`.
    """
    return as_float(logp) - constant(ref_logp)


@checked
def k2(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Half the squared log-ratio: biased value, exact on-policy gradient of the reverse KL.

    Formula: `(log pi - log pi_ref)^2 / 2`
    Paper: Schulman 2020, "Approximating KL Divergence"

    Args:
      logp: `[...]`.
      ref_logp: `[...]`.

    Returns:
      `[...]`, nonnegative.
    """
    return 0.5 * jnp.square(k1(logp, ref_logp))


@checked
def k3(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Nonnegative and unbiased value; as a loss term its gradient is that of the forward KL.

    Formula: `pi_ref / pi - 1 - log(pi_ref / pi)`
    Paper: Schulman 2020, "Approximating KL Divergence"; the KL term of GRPO (Shao et al. 2024)

    Args:
      logp: `[...]`.
      ref_logp: `[...]`.

    Returns:
      `[...]`, nonnegative.
    """
    difference = k1(logp, ref_logp)
    return bounded_exp(-difference) - 1.0 + difference


@checked
def abs_(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Absolute log-ratio: a bounded-gradient penalty on drift, not an estimate of a KL.

    Formula: `|log pi - log pi_ref|`
    Paper: Sheng et al. 2024, "HybridFlow" (the `abs` penalty)

    Args:
      logp: `[...]`.
      ref_logp: `[...]`.

    Returns:
      `[...]`, nonnegative.
    """
    return jnp.abs(k1(logp, ref_logp))


@checked
def k1_st(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Straight-through: the value of `k1`, the gradient of `k2`.

    Formula: `k2 + sg(k1 - k2)`
    Paper: Sheng et al. 2024, "HybridFlow" (the `k1+` penalty)

    Args:
      logp: `[...]`.
      ref_logp: `[...]`.

    Returns:
      `[...]`.
    """
    return _straight_through(k1(logp, ref_logp), k2(logp, ref_logp))


@checked
def k3_st(logp: jax.Array, ref_logp: jax.Array) -> jax.Array:
    """Straight-through: the value of `k3`, the gradient of `k2`.

    Formula: `k2 + sg(k3 - k2)`
    Paper: Sheng et al. 2024, "HybridFlow" (the `k3+` penalty)

    Args:
      logp: `[...]`.
      ref_logp: `[...]`.

    Returns:
      `[...]`, nonnegative.
    """
    return _straight_through(k3(logp, ref_logp), k2(logp, ref_logp))


@checked
def k3_importance(logp: jax.Array, ref_logp: jax.Array, behavior_logp: jax.Array) -> jax.Array:
    """Importance-corrected k3: unbiased for tokens drawn from the behaviour policy, gradient too.

    Formula: `pi / pi_b * (pi_ref / pi - 1 - log(pi_ref / pi))`
    Paper: DeepSeek-AI 2025, "DeepSeek-V3.2" (unbiased KL estimate)

    Args:
      logp: `[...]`.
      ref_logp: `[...]`.
      behavior_logp: `[...]` log-probabilities recorded by the sampler.

    Returns:
      `[...]`, nonnegative.
    """
    return importance_ratio(logp, behavior_logp) * k3(logp, ref_logp)


@checked
def reverse_kl(logits: jax.Array, ref_logits: jax.Array) -> jax.Array:
    """Full-vocabulary reverse KL, exact in value and gradient.

    Formula: `sum_v pi(v) (log pi(v) - log pi_ref(v))`
    Paper: Kullback & Leibler 1951

    Args:
      logits: `[..., V]` of the policy.
      ref_logits: `[..., V]` of the reference (constant).

    Returns:
      `[...]` nats.
    """
    logp, ref_logp = _log_softmax(logits), _log_softmax(constant(ref_logits))
    return expectation(logp, logp - ref_logp)


@checked
def forward_kl(logits: jax.Array, ref_logits: jax.Array) -> jax.Array:
    """Full-vocabulary forward KL: covers the modes of the reference.

    Formula: `sum_v pi_ref(v) (log pi_ref(v) - log pi(v))`
    Paper: Kullback & Leibler 1951

    Args:
      logits: `[..., V]`.
      ref_logits: `[..., V]` (constant).

    Returns:
      `[...]` nats.
    """
    logp, ref_logp = _log_softmax(logits), _log_softmax(constant(ref_logits))
    return expectation(ref_logp, ref_logp - logp)


def _straight_through(value: jax.Array, gradient: jax.Array) -> jax.Array:
    return gradient + jax.lax.stop_gradient(value - gradient)


def _log_softmax(logits: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(as_float(logits), axis=-1)
