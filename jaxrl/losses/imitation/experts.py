"""Imitation of the rows that an expert wrote, in batches that have sampled rows too.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`. `expert [B]` is
nonzero on rows that an expert wrote; the others have no loss.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.imitation.supervised import entropy_sft, generalised_ntp
from jaxrl.losses.policy.objectives import Objective
from jaxrl.losses.reduce.shapes import checked

KIND = "supervised"


@checked
def expert_sft(logp: jax.Array, *, expert: jax.Array, beta: float = 0.0) -> Objective:
    """Supervised fine-tuning on the expert rows: what primes a policy for RL.

    Formula: `-sg((1 - pi_t)^beta) log pi_t` on expert rows, 0 on the others
    Paper: Gandhi et al. 2025, "Cognitive Behaviors that Enable Self-Improving Reasoners" (beta 0);
      Wu et al. 2025, "Diversity or Precision? A Deep Dive into Next Token Prediction"

    Args:
      logp: `[B, T]`.
      expert: `[B]` bool.
      beta: as in `generalised_ntp`; 0 is cross-entropy.

    Returns:
      Loss `[B, T]` and no metrics.
    """
    loss, _ = generalised_ntp(logp, beta=beta)
    return _of_experts(loss, expert), {}


@checked
def annealed_expert_sft(
    logp: jax.Array,
    *,
    expert: jax.Array,
    step: jax.Array,
    stable_steps: int = 20,
    decay_steps: int = 10,
    floor: float = 0.1,
) -> Objective:
    """Mid-training on the expert rows at a learning rate that falls along half a cosine.

    Formula: `-log pi_t` on expert rows, 0 on the others; factor of the rate `f + (1 - f) (1 +
      cos(pi u)) / 2`, `u = (step - stable_steps) / decay_steps`, for u from 0 to 1, else 1
    Paper: Wang et al. 2025, "OctoThinker: Mid-training Incentivizes Reinforcement Learning Scaling"
      (the cosine; its floor is recalled)

    Args:
      logp: `[B, T]`.
      expert: `[B]` bool.
      step: scalar int, updates done.
      stable_steps: updates at the whole rate.
      decay_steps: updates of the decay, from the whole rate towards `floor`.
      floor: f, share of the rate at the end of the decay.

    Returns:
      Loss `[B, T]`; metric `lr_scale`, a scalar.
    """
    place = (jnp.asarray(step, jnp.float32) - stable_steps) / decay_steps
    falling = floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * place))
    decays = (place > 0) & (place < 1)
    loss, _ = expert_sft(logp, expert=expert)
    return loss, {"lr_scale": jnp.where(decays, falling, 1.0)}


@checked
def expert_entropy_sft(
    logp: jax.Array,
    entropy: jax.Array,
    *,
    expert: jax.Array,
    batch_mask: jax.Array,
    entropy_coef: float = 1.0,
    token_share: float = 0.2,
) -> Objective:
    """Entropy-SFT on the expert rows: Light-IF's cold start.

    Formula: `entropy_sft` among the tokens of expert rows, 0 on the others
    Paper: Wang et al. 2025, "Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and
      Self-Checking for Complex Instruction Following"

    Args:
      logp: `[B, T]`.
      entropy: `[B, T]` of the distribution; no gradient flows into it.
      expert: `[B]` bool.
      batch_mask: `[B, T]`, action tokens of the whole batch.
      entropy_coef, token_share: of `entropy_sft`.

    Returns:
      Loss `[B, T]`; metric `kept` `[B, T]`.
    """
    mask = jnp.asarray(batch_mask, bool) & jnp.asarray(expert, bool)[:, None]
    settings = {"entropy_coef": entropy_coef, "token_share": token_share}
    loss, metrics = entropy_sft(logp, entropy, batch_mask=mask, **settings)
    return _of_experts(loss, expert), metrics


def _of_experts(loss: jax.Array, expert: jax.Array) -> jax.Array:
    """Losses `[B, T]`, 0 on the rows that no expert wrote."""
    return jnp.where(jnp.asarray(expert, bool)[:, None], loss, 0.0)
