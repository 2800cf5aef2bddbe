"""Objectives of several phases in one function, as the measurements were planned with.

The library's recipes have a stage for each phase; `joined` gives the config of a recipe with one
function in their place. Calling convention and masking contract as in
`jaxrl.losses.policy.objectives`. `expert [B]` is nonzero on rows that an expert wrote. `step` is
the number of updates done, a scalar int.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.config.stages import PERIOD
from jaxrl.losses.imitation.experts import annealed_expert_sft, expert_entropy_sft, expert_sft
from jaxrl.losses.imitation.supervised import expert_iteration
from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.policy.surrogates import tea
from jaxrl.losses.preference.direct import online_dpo, verified_dpo
from jaxrl.losses.reduce.shapes import checked

PRIMED = f"{__name__}:primed"
JOINED: dict[str, tuple[str, dict[str, float | str]]] = {
    "four_habits": ("primed", {"priming_steps": 40}),
    "generalised_ntp": ("primed", {"priming_steps": 20, "beta": -0.25}),
    "how_much_backtracking": ("primed", {"priming_steps": 40}),
    "light_if": ("light_if", {"priming_steps": 20, "alpha": 0.02}),
    "octothinker": ("stable_then_decay", {"stable_steps": 20, "decay_steps": 10}),
    "openvlthinker": ("iterated_sft", {"period": 20, "imitation_steps": 5}),
    "telechat2": ("sft_dpo_rl", {"sft_steps": 20, "dpo_steps": 20}),
    "tool_star": ("tool_star", {"period": 20, "preference_steps": 5}),
    "veripo": ("veripo", {"period": 20, "preference_steps": 5}),
    "warmup_then_rlvr": ("primed", {"priming_steps": 20}),
}
"""Recipe -> the function that its stages of the objective are, and its arguments."""


def joined(config: Config) -> Config:
    """The config of a recipe with one function for all stages of its objective; others as they are.

    Stages keep what they set beside the objective.
    """
    if config.recipe not in JOINED:
        return config
    name, args = JOINED[config.recipe]
    stages = {
        key: {k: v for k, v in changes.items() if not k.startswith("objective.") and k != PERIOD}
        for key, changes in config.stages.items()
    }
    return dataclasses.replace(
        config,
        stages={key: changes for key, changes in stages.items() if changes},
        objective=dataclasses.replace(
            config.objective, policy=f"{__name__}:{name}", policy_args=args
        ),
    )


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
    imitation, _ = expert_sft(logp, expert=expert, beta=beta)
    return _first(step < priming_steps, imitation, policy, expert), metrics


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
    imitation, scale = annealed_expert_sft(
        logp,
        expert=expert,
        step=step,
        stable_steps=stable_steps,
        decay_steps=decay_steps,
        floor=floor,
    )
    loss = _first(step < stable_steps + decay_steps, imitation, policy, expert)
    return loss, metrics | scale


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
    imitation, _ = expert_entropy_sft(
        logp,
        entropy,
        expert=expert,
        batch_mask=batch_mask,
        entropy_coef=entropy_coef,
        token_share=token_share,
    )
    policy, metrics = tea(
        logp,
        behavior_logp,
        advantages,
        entropy,
        batch_mask=batch_mask,
        expert=expert,
        alpha=alpha,
        bound=bound,
        clip_low=clip_low,
        clip_high=clip_high,
    )
    return _first(step < priming_steps, imitation, policy, expert), metrics


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
    preference, pairs = verified_dpo(
        logp, ref_logp, rewards, mask=mask, group_ids=group_ids, beta=beta, threshold=threshold
    )
    preferring = _second(step, period, preference_steps)
    return jnp.where(preferring, preference, policy), metrics | pairs


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
    preference, pairs = online_dpo(
        logp, ref_logp, rewards, mask=mask, group_ids=group_ids, beta=beta
    )
    preferring = _second(step, period, preference_steps)
    return jnp.where(preferring, preference, policy), metrics | {"paired": pairs["paired"]}


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


@checked
def sft_dpo_rl(
    logp: jax.Array,
    behavior_logp: jax.Array,
    ref_logp: jax.Array,
    advantages: jax.Array,
    rewards: jax.Array,
    *,
    expert: jax.Array,
    mask: jax.Array,
    group_ids: jax.Array,
    step: jax.Array,
    sft_steps: int = 20,
    dpo_steps: int = 20,
    beta: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Objective:
    """Supervised fine-tuning, then DPO, then PPO.

    A pair is the sampled row of a prompt with the highest reward and the one with the lowest. For
    DPO's reference to be the fine-tuned policy, it is renewed after `sft_steps`.

    Formula: `-log pi_t` on expert rows while `step < sft_steps`; then `online_dpo`, and from
      `sft_steps + dpo_steps` on `ppo_clip`, on sampled rows
    Paper: Wang et al. 2025, "Technical Report of TeleChat2, TeleChat2.5 and T1" (the stages; pairs
      from the policy's own samples are our reading)

    Args:
      logp, behavior_logp, ref_logp: `[B, T]`; the rows of a group must be in the same call.
      advantages: `[B, T]` or `[B, 1]`.
      rewards: `[B]`.
      expert: `[B]` bool.
      mask: `[B, T]`; a row without action tokens is in no pair.
      group_ids: `[B]` int32.
      step: scalar int, updates done.
      sft_steps, dpo_steps: updates of the first and of the second stage.
      beta: as in `dpo`.
      clip_low, clip_high: widths as in `ppo_clip`.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`, and `paired` `[B]`.
    """
    policy, metrics = ppo_clip(
        logp, behavior_logp, advantages, clip_low=clip_low, clip_high=clip_high
    )
    imitation, _ = expert_sft(logp, expert=expert)
    preference, pairs = online_dpo(
        logp, ref_logp, rewards, mask=mask, group_ids=group_ids, expert=expert, beta=beta
    )
    step = jnp.asarray(step)
    sampled = jnp.where(step < sft_steps + dpo_steps, preference, policy)
    loss = _first(step < sft_steps, imitation, sampled, expert)
    return loss, metrics | {"paired": pairs["paired"]}


def _second(step: jax.Array, period: int, length: int) -> jax.Array:
    """Whether an update is one of the `length` that begin each period but the first."""
    return (jnp.asarray(step) >= period) & (jnp.asarray(step) % period < length)


def _first(
    first: jax.Array | bool, imitation: jax.Array, policy: jax.Array, expert: jax.Array
) -> jax.Array:
    """Losses `[B, T]` of imitation in a first phase, and then those of the policy on the rows that
    no expert wrote."""
    return jnp.where(first, imitation, jnp.where(jnp.asarray(expert, bool)[:, None], 0.0, policy))
