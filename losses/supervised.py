"""Supervised terms: the log-likelihood of all rows, or of the samples that are kept.

Calling convention and masking contract as in `jaxrl.losses.policy`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.masking import as_float, constant, indicator, row_constant
from jaxrl.losses.policy import Objective
from jaxrl.losses.shapes import checked

KIND = "supervised"


@checked
def sft(logp: jax.Array, *, weights: jax.Array | None = None) -> Objective:
    """Weighted supervised fine-tuning: the negative log-likelihood.

    Formula: `-w_t log pi_t`
    Paper: Ouyang et al. 2022, "Training language models to follow instructions" (step 1)

    Args:
      logp: `[B, T]`.
      weights: `[B, T]` or `[B, 1]`, e.g. advantage weights; 1 when omitted.

    Returns:
      Loss `[B, T]` and no metrics.
    """
    loss = -as_float(logp)
    return (loss if weights is None else loss * constant(weights)), {}


@checked
def raft(
    logp: jax.Array, rewards: jax.Array, *, mask: jax.Array, group_ids: jax.Array
) -> Objective:
    """RAFT: supervised fine-tuning on the best sample of each group (the first of equals).

    Formula: `-1[i = argmax_(j in g) r_j] log pi_t`
    Paper: Dong et al. 2023, "RAFT: Reward rAnked FineTuning"

    Args:
      logp: `[B, T]`; the rows of a group must be in the same call.
      rewards: `[B]`.
      mask: `[B, T]`; rows without action tokens do not compete. Mask the losers for a mean over the
        kept tokens only.
      group_ids: `[B]` int32.

    Returns:
      Loss `[B, T]`; metric `kept` `[B]`.
    """
    acts = jnp.any(jnp.asarray(mask, bool), axis=-1)
    score = jnp.where(acts, row_constant(rewards, logp), -jnp.inf)
    same = group_ids[:, None] == group_ids[None, :]
    rows = jnp.arange(score.shape[0])
    better = score[None, :] > score[:, None]
    earlier = (score[None, :] == score[:, None]) & (rows[None, :] < rows[:, None])
    kept = acts & ~jnp.any(same & (better | earlier), axis=1)
    return jnp.where(kept[:, None], -as_float(logp), 0.0), {"kept": indicator(kept)}


@checked
def expert_iteration(logp: jax.Array, rewards: jax.Array, *, threshold: float = 0.5) -> Objective:
    """Expert iteration: supervised fine-tuning on every sample that is good enough.

    Formula: `-1[r >= threshold] log pi_t`
    Paper: Anthony et al. 2017, "Thinking Fast and Slow with Deep Learning and Tree Search"; Singh
      et al. 2023, "Beyond Human Data" (ReST-EM)

    Args:
      logp: `[B, T]`.
      rewards: `[B]`.
      threshold: least reward kept.

    Returns:
      Loss `[B, T]`; metric `kept` `[B]`.
    """
    kept = row_constant(rewards, logp) >= threshold
    return jnp.where(kept[:, None], -as_float(logp), 0.0), {"kept": indicator(kept)}
