"""The f-divergences: from generator to divergence, sampled estimator and convex conjugate.

`D_f(pi, pi_ref) = sum_v pi_ref(v) f(t_v)`, `t = pi / pi_ref`, `f` convex with `f(1) = 0`:

| kind         | f(t)                                       | f'(t)                         |
|--------------|--------------------------------------------|-------------------------------|
| `kl`         | t log t: the reverse KL(pi, pi_ref)        | log t + 1                     |
| `forward_kl` | -log t: KL(pi_ref, pi)                     | -1 / t                        |
| `js`         | (t log t - (t + 1) log((t + 1) / 2)) / 2   | log(2 t / (t + 1)) / 2        |
| `chi2`       | (t - 1)^2                                  | 2 (t - 1)                     |
| `hellinger`  | (sqrt t - 1)^2                             | 1 - 1 / sqrt t                |
| `tv`         | abs(t - 1) / 2                             | sign(t - 1) / 2               |
| `alpha`      | (t^a - a t + a - 1) / (a (a - 1))          | (t^(a - 1) - 1) / (a - 1)     |

`alpha` tends to `kl` as a -> 1 and to `forward_kl` as a -> 0 (up to a linear term that sums to 0);
a = 2 is half of `chi2`. Ratios beyond e^20 continue along their tangent in log space
(`masking.bounded_exp`).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, bounded_exp, constant
from jaxrl.losses.reduce.shapes import checked

KIND = "divergence"

KINDS = ("kl", "forward_kl", "js", "chi2", "hellinger", "tv", "alpha")


@checked
def f_divergence(
    logits: jax.Array, ref_logits: jax.Array, *, kind: str, alpha: float = 0.5
) -> jax.Array:
    """Full-vocabulary f-divergence from the reference, exact in value and gradient.

    Formula: `sum_v pi_ref(v) f(pi(v) / pi_ref(v))`; gradient `sum_v f'(t_v) grad pi(v)`
    Paper: Csiszar 1967; Ali & Silvey 1966; as regulariser Wang et al. 2023, "Beyond Reverse KL"

    Args:
      logits: `[..., V]` of the policy.
      ref_logits: `[..., V]` of the reference (constant), finite.
      kind: one of `KINDS`.
      alpha: order of `alpha`, neither 0 nor 1.

    Returns:
      `[...]`, nonnegative.
    """
    logp = jax.nn.log_softmax(as_float(logits), axis=-1)
    ref_logp = jax.nn.log_softmax(constant(ref_logits), axis=-1)
    f, _ = _generator(logp - ref_logp, kind, alpha)
    return jnp.sum(jnp.exp(ref_logp) * f, axis=-1)


@checked
def sampled(
    logp: jax.Array, ref_logp: jax.Array, *, kind: str = "kl", alpha: float = 0.5
) -> jax.Array:
    """One-token estimator of an f-divergence, on-policy unbiased in value and in gradient.

    Differentiating `f(t) / t` itself would miss that the tokens' distribution moves, so the value
    and the gradient are set apart.

    Formula: value `f(t) / t`, gradient `f'(t) grad log pi`, `t = pi / pi_ref`
    Paper: Go et al. 2023, "Aligning Language Models with Preferences through f-divergence
      Minimization"

    Args:
      logp, ref_logp: `[...]` of tokens drawn from the policy.
      kind: one of `KINDS`.
      alpha: order of `alpha`.

    Returns:
      `[...]`.
    """
    logp = as_float(logp)
    log_t = constant(logp) - constant(ref_logp)
    f, slope = _generator(log_t, kind, alpha)
    return f * bounded_exp(-log_t) + slope * (logp - constant(logp))


def conjugate(y: jax.Array, *, kind: str, alpha: float = 2.0) -> jax.Array:
    """Convex conjugate over nonnegative ratios, the `f*_p` of dual reinforcement learning.

    Its gradient is the maximising ratio `t*(y)`: 0 where the constraint binds. Outside the domain
    of the conjugate the value is inf.

    Formula: `sup_(t >= 0) t y - f(t)`
    Paper: Sikchi et al. 2023, "Dual RL: Unification and New Methods for Reinforcement and Imitation
      Learning"

    Args:
      y: any shape.
      kind: one of `KINDS`.
      alpha: order of `alpha`, above 1.

    Returns:
      The shape of `y`.
    """
    y = as_float(y)
    match kind:
        case "kl":
            return bounded_exp(y - 1.0)
        case "forward_kl":
            return _inside(y < 0.0, y, -1.0, lambda y: -1.0 - jnp.log(-y))
        case "js":
            domain = y < 0.5 * jnp.log(2.0)
            return _inside(domain, y, 0.0, lambda y: -0.5 * jnp.log(2.0 - jnp.exp(2.0 * y)))
        case "chi2":
            return jnp.where(y > -2.0, y + 0.25 * jnp.square(y), -1.0)
        case "hellinger":
            return _inside(y < 1.0, y, 0.0, lambda y: y / (1.0 - y))
        case "tv":
            return jnp.where(y > 0.5, jnp.inf, jnp.maximum(y, -0.5))
        case "alpha":
            if alpha <= 1.0:
                raise ValueError(f"alpha={alpha}: the conjugate is given for alpha above 1")
            base = 1.0 + (alpha - 1.0) * y
            power = jnp.where(base > 0.0, base, 1.0) ** (alpha / (alpha - 1.0))
            return (jnp.where(base > 0.0, power, 0.0) - 1.0) / alpha
        case _:
            raise ValueError(f"kind={kind!r} is unknown; choose one of {', '.join(KINDS)}")


def _inside(domain: jax.Array, y: jax.Array, safe: float, f: Callable) -> jax.Array:
    """`f(y)` on its domain, inf elsewhere; `safe` keeps the unused branch's gradient finite."""
    return jnp.where(domain, f(jnp.where(domain, y, safe)), jnp.inf)


def _generator(log_t: jax.Array, kind: str, alpha: float) -> tuple[jax.Array, jax.Array]:
    """`f(t)` and `f'(t)` from `log t`."""
    t = bounded_exp(log_t)
    match kind:
        case "kl":
            return t * log_t, log_t + 1.0
        case "forward_kl":
            return -log_t, -bounded_exp(-log_t)
        case "js":
            half = jnp.logaddexp(log_t, 0.0) - jnp.log(2.0)
            return 0.5 * (t * (log_t - half) - half), 0.5 * (log_t - half)
        case "chi2":
            return jnp.square(t - 1.0), 2.0 * (t - 1.0)
        case "hellinger":
            root = bounded_exp(0.5 * log_t)
            return jnp.square(root - 1.0), 1.0 - bounded_exp(-0.5 * log_t)
        case "tv":
            return 0.5 * jnp.abs(t - 1.0), 0.5 * jnp.sign(t - 1.0)
        case "alpha":
            if alpha in (0.0, 1.0):
                raise ValueError(f"alpha={alpha}: use kind='kl' for 1, 'forward_kl' for 0")
            f = (bounded_exp(alpha * log_t) - alpha * t + alpha - 1.0) / (alpha * (alpha - 1.0))
            return f, (bounded_exp((alpha - 1.0) * log_t) - 1.0) / (alpha - 1.0)
        case _:
            raise ValueError(f"kind={kind!r} is unknown; choose one of {', '.join(KINDS)}")
