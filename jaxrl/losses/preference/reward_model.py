"""Training scalar reward models from comparisons.

A reward head that predicts a distribution over bins trains with `value.categorical_loss` on
`value.hl_gauss` targets; one that predicts a scalar from comparisons trains with these.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.reduce.masking import as_float, constant, indicator
from jaxrl.losses.reduce.shapes import checked

KIND = "reward model"


@checked
def bradley_terry(
    chosen: jax.Array,
    rejected: jax.Array,
    *,
    margin: float | jax.Array = 0.0,
    center: float = 0.0,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Bradley-Terry: the log-likelihood of the comparison, by a margin where raters were sure.

    Formula: `-log sigmoid(r_w - r_l - margin) + center (r_w + r_l)^2`
    Paper: Bradley & Terry 1952; Touvron et al. 2023, "Llama 2" (margin); Eisenstein et al. 2023,
      "Helping or Herding?" (centring)

    Args:
      chosen, rejected: `[N]` rewards of the two responses.
      margin: scalar or `[N]`, in reward units, without gradient.
      center: weight of the term that fixes the free constant of the reward.

    Returns:
      Loss `[N]`; metrics `margin`, `correct` `[N]`.
    """
    chosen, rejected = as_float(chosen), as_float(rejected)
    gap = chosen - rejected
    loss = -jax.nn.log_sigmoid(gap - constant(margin)) + center * jnp.square(chosen + rejected)
    return loss, {"margin": constant(gap), "correct": indicator(gap > 0)}


@checked
def plackett_luce(rewards: jax.Array, valid: jax.Array) -> jax.Array:
    """Plackett-Luce: the log-likelihood of a whole ranking, of which a pair is Bradley-Terry.

    Formula: `-sum_k log(exp(r_k) / sum_(j >= k) exp(r_j))`, best first
    Paper: Plackett 1975; Luce 1959; used for reward models by Ouyang et al. 2022

    Args:
      rewards: `[N, K]` of responses in order, best first.
      valid: `[N, K]` bool, True for a prefix of each row.

    Returns:
      Loss `[N]`.
    """
    valid = jnp.asarray(valid, bool)
    rewards = jnp.where(valid, as_float(rewards), 0.0)
    floor = jnp.where(valid, rewards, -1e30)
    tail = jax.lax.cumlogsumexp(floor, axis=floor.ndim - 1, reverse=True)
    return jnp.sum(jnp.where(valid, tail - rewards, 0.0), axis=-1)
