"""Objectives of several phases in one run: imitation first, or two objectives in turns.

Calling convention and masking contract as in `jaxrl.losses.policy.objectives`. `expert [B]` is
nonzero on rows that an expert wrote. `step` is the number of updates done, a scalar int.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.imitation.supervised import entropy_sft, expert_iteration, generalised_ntp
from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.policy.surrogates import token_covariance
from jaxrl.losses.preference.direct import online_dpo
from jaxrl.losses.reduce.masking import (
    as_float,
    constant,
    in_turn,
    indicator,
    row_constant,
    row_sum,
    where_valid,
)
from jaxrl.losses.reduce.shapes import checked

KIND = "policy"


@checked
def tea(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    entropy: jax.Array,
    *,
    batch_mask: jax.Array,
    alpha: float = 10.0,
    bound: float = 5.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """TEA: PPO with an entropy bonus on the tokens whose update would cost most entropy.

    The coefficients of a response add up to alpha at most, so the share of a token falls with the
    length. They are constants here; the authors' code lets the gradient flow into them.

    Formula: `ppo_clip - min(alpha softmax_row(cov)_t, bound) H_t`,
      `cov_t = (A_t - mean A) (log pi_t - mean log pi)`
    Paper: Wang et al. 2025, "Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and
      Self-Checking for Complex Instruction Following" (as in the authors' code)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      entropy: `[B, T]` of the distribution; a gradient flows into it.
      batch_mask: `[B, T]`, action tokens of the whole batch, which the means are of.
      alpha: of the coefficients of a response, their sum.
      bound: of a coefficient.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `entropy_weight` `[B, T]`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    batch_mask = jnp.asarray(batch_mask, bool)
    covariance = token_covariance(logp, advantages, mask=batch_mask)
    share = jax.nn.softmax(where_valid(batch_mask, covariance, -1e30), axis=-1)
    weight = where_valid(batch_mask, jnp.minimum(alpha * share, bound))
    loss = policy - weight * as_float(entropy)
    return loss, metrics | {"entropy_weight": weight}


@checked
def primed(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    step: jax.Array,
    priming_steps: int = 20,
    beta: float = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """Imitation of the expert rows for some steps, then PPO on the sampled rows.

    Formula: `generalised_ntp(beta)` on expert rows while `step < priming_steps`, then `ppo_clip` on
      sampled rows
    Paper: Gandhi et al. 2025, "Cognitive Behaviors that Enable Self-Improving Reasoners" (beta 0);
      Wu et al. 2025, "Diversity or Precision? A Deep Dive into Next Token Prediction"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      expert: `[B]` bool.
      step: scalar int, updates done.
      priming_steps: updates of the first phase.
      beta: of `generalised_ntp`; 0 is supervised fine-tuning.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    imitation, _ = generalised_ntp(logp, beta=beta)
    return in_turn(imitation, policy, expert, step < priming_steps), metrics


@checked
def stable_then_decay(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    step: jax.Array,
    stable_steps: int = 20,
    decay_steps: int = 10,
    floor: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """OctoThinker: mid-training at a constant rate, then at one that decays; then PPO.

    Formula: `-log pi_t` on expert rows while `step < stable_steps + decay_steps`, then `ppo_clip`
      on sampled rows; factor of the rate `f + (1 - f) (1 + cos(pi u)) / 2`, `u = (step -
      stable_steps) / decay_steps`, in the decay, else 1
    Paper: Wang et al. 2025, "OctoThinker: Mid-training Incentivizes Reinforcement Learning Scaling"
      (the cosine; its floor is recalled)

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      expert: `[B]` bool.
      step: scalar int, updates done.
      stable_steps: updates at the whole rate.
      decay_steps: updates of the decay, from the whole rate towards `floor`.
      floor: f, share of the rate at the end of the decay.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip` and `lr_scale`, a scalar.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    place = (jnp.asarray(step, jnp.float32) - stable_steps) / decay_steps
    falling = floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * place))
    decaying = (place > 0) & (place < 1)
    loss = in_turn(-as_float(logp), policy, expert, step < stable_steps + decay_steps)
    return loss, metrics | {"lr_scale": jnp.where(decaying, falling, 1.0)}


@checked
def light_if(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    entropy: jax.Array,
    *,
    expert: jax.Array,
    batch_mask: jax.Array,
    step: jax.Array,
    priming_steps: int = 20,
    entropy_coef: float = 1.0,
    token_share: float = 0.2,
    alpha: float = 10.0,
    bound: float = 5.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """Light-IF: a cold start by Entropy-SFT, then TEA-RL.

    Formula: `entropy_sft` on expert rows while `step < priming_steps`, then `tea` on sampled rows
    Paper: Wang et al. 2025, "Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and
      Self-Checking for Complex Instruction Following"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      entropy: `[B, T]` of the distribution; the gradient of `tea` flows into it.
      expert: `[B]` bool.
      batch_mask: `[B, T]`, action tokens of the whole batch.
      step: scalar int, updates done.
      priming_steps: updates of the first phase.
      entropy_coef, token_share: of `entropy_sft`.
      alpha, bound: of `tea`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `tea`.
    """
    taught = jnp.asarray(batch_mask, bool) & jnp.asarray(expert, bool)[:, None]
    imitation, _ = entropy_sft(
        logp, entropy, batch_mask=taught, entropy_coef=entropy_coef, token_share=token_share
    )
    own = jnp.asarray(batch_mask, bool) & ~jnp.asarray(expert, bool)[:, None]
    widths = {"clip_low": clip_low, "clip_high": clip_high}
    policy, metrics = tea(
        logp, behavior_logp, advantages, entropy, batch_mask=own, alpha=alpha, bound=bound, **widths
    )
    return in_turn(imitation, policy, expert, step < priming_steps), metrics


@checked
def veripo(
    logp: jax.Array,
    behavior_logp: jax.Array,
    ref_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    step: jax.Array,
    period: int = 20,
    preference_steps: int = 5,
    beta: float = 0.1,
    threshold: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """VerIPO: GRPO explores, then DPO on pairs that a verifier has made of the rollouts, in turns.

    A pair is the longest rollout of a prompt that passed, and the shortest that failed; of equals
    the first. The first `period` updates are GRPO's. Each later period begins with the preference
    steps, so a reference that is renewed every `period` steps is the policy before them.

    Formula: `-log sigmoid(beta (d_w - d_l))`, `d = log(pi(y) / pi_ref(y))`, while
      `step mod period < preference_steps` and `step >= period`; else `ppo_clip`
    Paper: Li et al. 2025, "VerIPO: Cultivating Long Reasoning in Video-LLMs via Verifier-Guided
      Iterative Policy Optimization" (which pair is chosen is our reading)

    Args:
      logp, behavior_logp, ref_logp: `[B, T]`; the rows of a group must be in the same call.
      advantages: `[B, T]` or `[B, 1]`.
      rewards: `[B]`.
      mask: `[B, T]`; rows without action tokens are in no pair.
      group_ids: `[B]` int32.
      step: scalar int, updates done.
      period: updates from one preference phase to the next.
      preference_steps: updates of a preference phase.
      beta: as in `dpo`.
      threshold: least reward that passes.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`, half of a pair's on each of its rows, equal along a row, in a preference phase;
      the metrics of `ppo_clip` and `paired` `[B]`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    passed = row_constant(rewards, logp) >= threshold
    lengths = jnp.sum(jnp.asarray(mask, bool), axis=-1)
    acts, rows = lengths > 0, jnp.arange(len(lengths))
    together = (group_ids[:, None] == group_ids[None, :]) & acts[:, None] & acts[None, :]
    right, wrong = together & passed[None, :], together & ~passed[None, :]
    best = jnp.argmax(jnp.where(right, lengths[None, :], -1), axis=1)
    worst = jnp.argmin(jnp.where(wrong, lengths[None, :], mask.shape[1] + 1), axis=1)
    d = row_sum(mask, as_float(logp) - constant(ref_logp))
    both = jnp.any(right, axis=1) & jnp.any(wrong, axis=1)
    paired = acts & both & ((rows == best) | (rows == worst))
    loss = jnp.where(paired, -0.5 * jax.nn.log_sigmoid(beta * (d[best] - d[worst])), 0.0)
    preferring = _second(step, period, preference_steps)
    return jnp.where(preferring, loss[:, None], policy), metrics | {"paired": indicator(paired)}


@checked
def tool_star(
    logp: jax.Array,
    behavior_logp: jax.Array,
    ref_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    mask: jax.Array,
    group_ids: jax.Array,
    step: jax.Array,
    period: int = 20,
    preference_steps: int = 5,
    beta: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """Tool-Star's self-critic: GRPO, then DPO on the policy's own best and worst, in turns.

    Pairs are those of `online_dpo`: of a prompt, the rollouts with the highest and the lowest
    reward. When which of the two is trained is as in `veripo`.

    Formula: `-log sigmoid(beta (d_w - d_l))`, `d = log(pi(y) / pi_ref(y))`, while
      `step mod period < preference_steps` and `step >= period`; else `ppo_clip`
    Paper: Dong et al. 2025, "Tool-Star: Empowering LLM-Brained Multi-Tool Reasoner via
      Reinforcement Learning"

    Args:
      logp, behavior_logp, ref_logp: `[B, T]`; the rows of a group must be in the same call.
      advantages: `[B, T]` or `[B, 1]`.
      rewards: `[B]`.
      mask: `[B, T]`; rows without action tokens are in no pair.
      group_ids: `[B]` int32.
      step: scalar int, updates done.
      period: updates from one preference phase to the next.
      preference_steps: updates of a preference phase.
      beta: as in `dpo`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`, half of a pair's on each of its rows, equal along a row, in a preference phase;
      the metrics of `ppo_clip` and `paired` `[B]`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    preference, found = online_dpo(
        logp, ref_logp, rewards, mask=mask, group_ids=group_ids, beta=beta
    )
    preferring = _second(step, period, preference_steps)
    return jnp.where(preferring, preference, policy), metrics | {"paired": found["paired"]}


@checked
def iterated_sft(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    step: jax.Array,
    period: int = 20,
    imitation_steps: int = 5,
    threshold: float = 0.5,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """OpenVLThinker: RL, then supervised fine-tuning on its own right answers, in turns.

    The first `period` updates are RL's. Each later period begins with the imitation steps.

    Formula: `-1[r >= threshold] log pi_t` while `step mod period < imitation_steps` and
      `step >= period`; else `ppo_clip`
    Paper: Deng et al. 2025, "OpenVLThinker: An Early Exploration to Complex Vision-Language
      Reasoning via Iterative Self-Improvement"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`.
      rewards: `[B]`.
      step: scalar int, updates done.
      period: updates from one imitation phase to the next.
      imitation_steps: updates of an imitation phase.
      threshold: least reward that is imitated.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    imitation, _ = expert_iteration(logp, rewards, threshold=threshold)
    return jnp.where(_second(step, period, imitation_steps), imitation, policy), metrics


def _second(step: jax.Array, period: int, length: int) -> jax.Array:
    """Whether an update is one of the `length` that begin each period but the first."""
    return (jnp.asarray(step) >= period) & (jnp.asarray(step) % period < length)
