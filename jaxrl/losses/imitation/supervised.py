"""Supervised terms: the log-likelihood of all rows, or of the samples that are kept, or at first.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.reduce.masking import as_float, constant, indicator, row_constant, where_valid
from jaxrl.losses.reduce.shapes import checked

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
def generalised_ntp(logp: jax.Array, *, beta: float = -0.25) -> Objective:
    """Next-token prediction as a policy gradient whose reward is scaled: precision or diversity.

    The reward of the right token, `1 / pi` in cross-entropy, is multiplied by a power of its error.
    A negative exponent weighs tokens more that are almost learned, so mass concentrates on the
    right token; a positive one leaves them, so mass stays spread.

    Formula: `-sg((1 - pi_t)^beta) log pi_t`
    Paper: Wu et al. 2025, "Diversity or Precision? A Deep Dive into Next Token Prediction" (the
      scale of the positive reward, recalled; negative tokens have none here)

    Args:
      logp: `[B, T]`.
      beta: below 0 precision, above 0 diversity; 0 is cross-entropy.

    Returns:
      Loss `[B, T]`; metric `weight` `[B, T]`.
    """
    error = 1.0 - jnp.exp(jnp.minimum(constant(logp), 0.0))
    weight = jnp.power(jnp.maximum(error, 1e-6), beta)
    return -weight * as_float(logp), {"weight": weight}


@checked
def entropy_sft(
    logp: jax.Array,
    entropy: jax.Array,
    *,
    batch_mask: jax.Array,
    entropy_coef: float = 1.0,
    token_share: float = 0.2,
) -> Objective:
    """Entropy-SFT: imitate only the tokens whose loss exceeds the policy's uncertainty the most.

    Tokens that the policy is unsure of anyway are left as they are, so entropy is kept for RL.

    Formula: `-1[t among the k largest of ce_t - c H_t] (n / k) log pi_t`, `ce_t = -log pi_t`,
      `k = max(floor(share n), 1)` of the n tokens of the batch
    Paper: Wang et al. 2025, "Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and
      Self-Checking for Complex Instruction Following" (as in the authors' code)

    Args:
      logp: `[B, T]`.
      entropy: `[B, T]` of the distribution; no gradient flows into it.
      batch_mask: `[B, T]`, the tokens of the whole batch to choose among.
      entropy_coef: c.
      token_share: of the tokens that are kept.

    Returns:
      Loss `[B, T]`, whose mean over all tokens is that over the kept ones; metric `kept` `[B, T]`.
    """
    batch_mask = jnp.asarray(batch_mask, bool)
    excess = -constant(logp) - entropy_coef * constant(entropy)
    order = jnp.argsort(-where_valid(batch_mask, excess, -jnp.inf), axis=None)
    rank = jnp.argsort(order).reshape(excess.shape)
    count = jnp.sum(batch_mask)
    keep = jnp.maximum((token_share * count).astype(jnp.int32), 1)
    kept_tokens = batch_mask & (rank < keep)
    loss = jnp.where(kept_tokens, -as_float(logp) * (count / keep), 0.0)
    return loss.astype(as_float(logp).dtype), {"kept": indicator(kept_tokens)}


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
    kept_rows = acts & ~jnp.any(same & (better | earlier), axis=1)
    return jnp.where(kept_rows[:, None], -as_float(logp), 0.0), {"kept": indicator(kept_rows)}


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
    kept_rows = row_constant(rewards, logp) >= threshold
    return jnp.where(kept_rows[:, None], -as_float(logp), 0.0), {"kept": indicator(kept_rows)}


@checked
def pangu_agent(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    step: jax.Array,
    cloning_steps: int = 100,
    threshold: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """Pangu-Agent: supervised fine-tuning on its own successful episodes, then PPO.

    Formula: `-1[r >= threshold] log pi_t` while `step < cloning_steps`, then `ppo_clip`
    Paper: Christianos et al. 2023, "Pangu-Agent: A Fine-Tunable Generalist Agent with Structured
      Reasoning"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      rewards: `[B]`.
      step: scalar int, updates done.
      cloning_steps: updates of the first phase.
      threshold: least reward of a success.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    cloning, _ = expert_iteration(logp, rewards, threshold=threshold)
    return jnp.where(jnp.asarray(step) < cloning_steps, cloning, policy), metrics
