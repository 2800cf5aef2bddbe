"""Families of methods, and the baselines that each method is measured against.

A family says what its methods have in common, and so what else one could have done. Its baselines
train in the regime of the method: same task, staleness, rewards, steps and samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.lab import routes
from experiments.lab.arms import Arm, Sampled
from experiments.lab.variants import wrong_verdicts
from jaxrl.extensions.critic import CriticConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.losses.policy.mixed import sft
from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

GRID = {"learning_rate": (3e-4, 1e-3, 3e-3), "clip": (0.5, 1.0, 2.0)}
"""What every arm is tuned over: learning rates at the clip as it is, then widths of the clip, in
units of the arm's own, at the best rate."""
DEVELOPMENT = tuple(range(10_000, 10_006))
"""Seeds that arms are tuned on, and that no effect is measured on."""
EXPERTS = GuidanceConfig("expert_rows")

_CLIP_HIGHER = {"clip_low": 0.2, "clip_high": 0.28}
_RAW = {"baseline": "none", "scale": "none"}
_GRPO = ObjectiveConfig(aggregation="seq-mean-token-mean")
_SFT = ObjectiveConfig(policy="chord", policy_args={"mu": 1.0}, advantage="sampled_advantages")


def luffy(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    expert: jax.Array,
    gamma: float = 0.1,
) -> Objective:
    """LUFFY: expert rows in the group, their probabilities shaped in place of a ratio.

    Formula: `-A f(pi)` on expert rows, `f(x) = x / (x + gamma)`; `ppo_clip` on sampled rows
    Paper: Yan et al. 2025, "Learning to Reason under Off-Policy Guidance"

    Args:
      logp, behavior_logp: `[B, T]`.
      advantages: `[B, T]` or `[B, 1]`, of groups with their expert rows.
      expert: `[B]` bool.
      gamma: of the shaping; the authors' is 0.1.

    Returns:
      Loss `[B, T]`; the metrics of `ppo_clip`.
    """
    policy, metrics = ppo_clip(logp, behavior_logp, advantages)
    p = jnp.exp(-sft(logp)[0])
    return jnp.where(expert[:, None], -advantages * p / (p + gamma), policy), metrics


def linear_length(
    rewards: jax.Array, lengths: jax.Array, weight: float = 0.02, longest: float = 12.0
) -> jax.Array:
    """Rewards [N] less `weight` for each token, up to a length."""
    return rewards - weight * jnp.minimum(lengths, longest)


def _objective(**fields: object) -> Callable[[Arm], Arm]:
    return lambda plain: dataclasses.replace(plain, objective=ObjectiveConfig(**fields))


def _sft_then_rl(plain: Arm) -> Arm:
    """Imitation for the first half of the steps."""
    first = {"objective": _SFT, "guidance": EXPERTS}
    then = {"objective": _GRPO, "guidance": None}
    return dataclasses.replace(plain, stages=((0, first), (plain.steps // 2, then)))


def _penalised(weight: float) -> Callable[[Arm], Arm]:
    return _objective(
        shaping=f"{__name__}:linear_length",
        shaping_args={"weight": weight},
        aggregation="seq-mean-token-mean",
    )


def _with_experts(policy: str, advantage: str, **args: float) -> Callable[[Arm], Arm]:
    objective = ObjectiveConfig(policy=policy, policy_args=args, advantage=advantage)
    return lambda plain: dataclasses.replace(plain, objective=objective, guidance=EXPERTS)


def _grpo(plain: Arm) -> Arm:
    return dataclasses.replace(plain, objective=_GRPO)


def _sampled_dynamically(plain: Arm) -> Arm:
    return dataclasses.replace(plain, objective=_GRPO, oversampling=2.0)


def _dapo(plain: Arm) -> Arm:
    higher = ObjectiveConfig(policy_args=_CLIP_HIGHER)
    return dataclasses.replace(plain, objective=higher, oversampling=2.0)


def _ppo(plain: Arm) -> Arm:
    critic = CriticConfig(optimizer=OptimizerConfig(learning_rate=1e-3))
    return dataclasses.replace(plain, objective=ObjectiveConfig(), critic=critic)


def _on_verdicts(plain: Arm) -> Arm:
    """Of the verifier, which errs on the hostile task."""
    rewards = wrong_verdicts if plain.rewards is wrong_verdicts else None
    return dataclasses.replace(plain, objective=_GRPO, rewards=rewards)


def _rewarded(rewards: Callable[[Sampled], jax.Array]) -> Callable[[Arm], Arm]:
    return lambda plain: dataclasses.replace(plain, objective=_GRPO, rewards=rewards)


def _untrained(plain: Arm) -> Arm:
    return dataclasses.replace(plain, objective=_GRPO, learning_rate=0.0)


def _on_texts(weigh: Callable[[int], tuple[float, ...]]) -> Callable[[Arm], Arm]:
    """Imitation throughout, of domains by the weights that their number gives."""
    sft = {"objective": _SFT, "guidance": EXPERTS}
    return lambda plain: dataclasses.replace(plain, weights=weigh(len(plain.weights)), **sft)


def shares(method: Arm) -> tuple[float, ...]:
    """Of each domain among all prompts of a method, whatever the order that they come in."""
    drawn = [method.at(step).weights for step in range(method.steps)]
    return tuple(
        sum(weights[domain] / sum(weights) for weights in drawn) / len(drawn)
        for domain in range(len(method.weights))
    )


def _on_the_target(plain: Arm) -> Arm:
    """RL on the last domain, in place of the others."""
    weights = (*[0.0] * (len(plain.weights) - 1), 1.0)
    return dataclasses.replace(plain, objective=_GRPO, weights=weights)


_DR_GRPO = _objective(advantage_args={"scale": "none"}, aggregation="seq-mean-token-sum-norm")

BASELINES: dict[str, dict[str, Callable[[Arm], Arm]]] = {
    "objectives": {
        "GRPO": _grpo,
        "Dr. GRPO": _DR_GRPO,
        "DAPO": _dapo,
        "CISPO": _objective(policy="cispo"),
    },
    "off-policy": {
        "truncated importance sampling": _objective(policy="aipo"),
        "REC clip": _objective(policy="rec", advantage_args={"scale": "none"}),
        "decoupled PPO": _objective(policy="decoupled_ppo"),
    },
    "gold solutions": {
        "SFT": _with_experts("chord", "sampled_advantages", mu=1.0),
        "SFT then RL": _sft_then_rl,
        "SFT + GRPO": _with_experts("chord", "sampled_advantages", mu=0.5),
        "LUFFY": _with_experts(f"{__name__}:luffy", "group_advantages"),
    },
    "data selection": {"uniform": _grpo, "dynamic sampling": _sampled_dynamically},
    "length": {
        "linear penalty": _penalised(0.02),
        "linear penalty, a quarter": _penalised(0.005),
        "linear penalty, four times": _penalised(0.08),
    },
    "critics": {"PPO": _ppo, "GRPO": _grpo},
    "preferences": {
        "GRPO": _grpo,
        "online DPO": _objective(
            policy="pair_dpo", advantage_args=_RAW, aggregation="seq-mean-token-mean"
        ),
        "rejection sampling": _objective(
            policy="raft", advantage_args=_RAW, aggregation="seq-mean-token-sum"
        ),
    },
    "mixtures": {
        "SFT on an even mixture": _on_texts(lambda count: (1.0,) * count),
        "SFT on the target": _on_texts(lambda count: (*[0.0] * (count - 1), 1.0)),
    },
    "priming": {"GRPO": _grpo, "SFT then RL": _sft_then_rl},
    "skills": {
        "SFT on the target": _on_texts(lambda count: (*[0.0] * (count - 1), 1.0)),
        "RL on the target": _on_the_target,
    },
    "rewards": {"GRPO on verdicts": _on_verdicts, "GRPO on the regime's rewards": _grpo},
    "routing": {
        "GRPO on rules": _rewarded(routes.by_rule),
        "GRPO on a judge": _rewarded(routes.by_judge),
        "GRPO on verdicts": _on_verdicts,
    },
    "agents": {
        "GRPO": _grpo,
        "leave-one-out REINFORCE": _objective(policy="reinforce", advantage="rloo"),
    },
}
"""Family -> baseline -> the arm that it makes of a plain one."""
ALWAYS = {"gold solutions": ("SFT",)}
"""Family -> baselines that each of its methods has a row against, also where another is better."""

RECIPES: dict[str, tuple[str, str]] = {
    "ace_rl": ("rewards", "a verdict on each item against one on the whole"),
    "a_lol": ("off-policy", "advantage over the reference's value against the raw reward"),
    "alphaalign": ("rewards", "helpfulness, normalised in the group, beside safety"),
    "adcl_egsr": ("gold solutions", "re-estimated order and reformulations against neither"),
    "aepo": ("objectives", "the gradient kept past the upper clip and the entropy factor"),
    "armed": ("rewards", "scores in units of their history against scores as they are"),
    "areal": ("off-policy", "the clip around the policy of the step against the sampler's"),
    "asearcher": ("agents", "the decoupled clip with a cap against the sampler's"),
    "bleuberi": ("rewards", "BLEU against identity with the reference"),
    "campo": ("length", "stages of length and the penalty on loops"),
    "chord": ("gold solutions", "annealed imitation"),
    "creative_slm_rlaif": ("rewards", "corrected principles against a reward model from pairs"),
    "cure": ("objectives", "forks at tokens of high entropy"),
    "delethink_markovian_thinker": ("agents", "chunks against one context"),
    "domain_upsampling": ("mixtures", "the domain upsampled at the end against the base mixture"),
    "donod": ("gold solutions", "the best 30% of the solutions against 30% at random"),
    "dph_rl": ("objectives", "rehearsal of the first policy against a reverse KL"),
    "dr_irl_grpo_s": ("objectives", "the scale by difficulty"),
    "drive_pre_grpo": ("data selection", "the second stage on hard prompts"),
    "dump": ("data selection", "the bandit against even shares"),
    "echo_chamber": ("objectives", "expert iteration against no training"),
    "expo": ("gold solutions", "explanations against second samples"),
    "four_habits_of_highly_effective_stars": ("priming", "traces that go back against waiting"),
    "gain_rl": ("data selection", "order by angles against none"),
    "general_reasoner": ("rewards", "a trained verifier against identity with the reference"),
    "generalised_ntp_objective_precision_dive": ("gold solutions", "the precise prior"),
    "ghpo": ("gold solutions", "hints against second samples"),
    "grao": ("gold solutions", "imitation and alignment terms"),
    "guimid": ("mixtures", "mid-training on other tasks against trajectories alone"),
    "hl_gauss_value_classification": ("critics", "bins against a scalar"),
    "how_much_backtracking": ("priming", "three steps back in a trace against one"),
    "igpo": ("gold solutions", "given pieces against second samples"),
    "karl": ("off-policy", "the regression against REINFORCE"),
    "kimi_k1_5": ("length", "the length reward"),
    "kl_rl_as_bayesian_inference": ("objectives", "the KL term"),
    "knowrl": ("rewards", "claims that are looked up against answers alone"),
    "light_if": ("gold solutions", "phases that keep entropy against plain ones"),
    "limr_lim": ("data selection", "prompts by alignment against prompts at random"),
    "llamarl": ("off-policy", "the truncated weight against none"),
    "loop": ("agents", "ratios by token against ratios by trajectory"),
    "magic_token_co_training": ("priming", "all modes at once against one after the other"),
    "memory_r_episodic_intrinsic_reward": ("rewards", "the memory's reward"),
    "octothinker": ("skills", "a decay on chains of thought against one on answers"),
    "off_the_principals_three_gate_theory": ("gold solutions", "RL against imitation"),
    "one_shot_rlvr": ("data selection", "the example by its variance against one at random"),
    "oorl_gepo": ("preferences", "preferences between sets of equivalent answers"),
    "openvlthinker": ("objectives", "phases of imitation against none"),
    "p5": ("mixtures", "three tasks against one"),
    "pacs": ("objectives", "the coupled loss against its actor term"),
    "pairwise_rl": ("critics", "a pair model with an anchor against a scalar model"),
    "par": ("rewards", "the sigmoid around a reference against the raw score"),
    "past": ("skills", "the source's skill against none"),
    "pf_ppo": ("rewards", "best and worst against all samples"),
    "pope": ("gold solutions", "oracle prefixes against second samples"),
    "post_training_for_vulnerability_detectio": ("objectives", "the cause beside the verdict"),
    "prefixrl": ("gold solutions", "prefixes against none"),
    "prorl": ("objectives", "moving the reference up"),
    "ra3": ("skills", "mid-training with plans against next-token prediction"),
    "raft": ("objectives", "the best sample against any"),
    "randomcalculation": ("rewards", "a true reward against coins"),
    "rast": ("objectives", "a trained helper against an untrained one"),
    "rec_red_off_policy_group_reinforce": ("off-policy", "the one-sided clip against none"),
    "recap": ("data selection", "moving shares against even ones"),
    "relift": ("gold solutions", "imitation of failed prompts"),
    "remix": ("off-policy", "replayed rollouts and a second update"),
    "research_idea_dynamic_control": ("skills", "weights of the prompt against even ones"),
    "ring_1t_icepop_c3po": ("off-policy", "the mask of discrepant tokens against none"),
    "rl4lms_grue_nlpo": ("critics", "the mask against none"),
    "rl_plus": ("gold solutions", "the external term"),
    "rlcr": ("rewards", "the Brier term"),
    "rlmt": ("rewards", "a thought before the answer against none"),
    "rlpr": ("rewards", "mean probability, debiasing and filter against likelihood"),
    "rlpt": ("rewards", "any beginning of the text against the segment as cut"),
    "rorecomp": ("length", "recomposed batches against whole ones"),
    "rubicon_rubric_anchors": ("objectives", "veto, saturation and interaction against a sum"),
    "rulereasoner_dads": ("data selection", "shares by shortfall against even ones"),
    "sasr": ("gold solutions", "the adaptive mixture against halves"),
    "scalerl": ("objectives", "the bundle of settings against GRPO"),
    "self_low_likelihood_rlvr": ("data selection", "unlikely prompts and the forward KL"),
    "simplerl_zoo": ("data selection", "prompts within reach against the hardest"),
    "spare": ("rewards", "labels of one pass against labels of rollouts"),
    "sws": ("data selection", "problems of weak categories against all categories"),
    "telechat2_telechat2_5_t1": ("priming", "DPO between SFT and RL against none"),
    "tom_rl_vs_sft": ("gold solutions", "RL against no training"),
    "tp_grpo": ("objectives", "rewards for thoughts"),
    "tram": ("gold solutions", "a radius by the divergence against a constant one"),
    "tricks_or_traps_lite_ppo": ("objectives", "the batch's deviation and the token mean"),
    "vb_vs_vf_scaling": ("gold solutions", "RL against imitation"),
    "vcpo": ("off-policy", "step size by effective samples, and the baseline"),
    "veripo": ("preferences", "phases of preferences against none"),
    "vibethinker_1_5b_ssp_mgpo": ("objectives", "weights by how undecided a prompt is"),
    "visurf": ("gold solutions", "the label's advantage"),
    "warmup_then_rlvr": ("skills", "a warm-up on another domain against none"),
    "wethink": ("routing", "rules where they can check beside a judge, against rules alone"),
    "wingpt_3_0": ("rewards", "RL on a rule and a reward model against SFT alone"),
}
"""Recipe -> its family, and the difference to its ablation."""


def plain(method: Arm) -> Arm:
    """An arm of a method's regime, sizes and budget with nothing of the method."""
    kept = (
        "steps", "prompts", "group_size", "updates_per_batch", "temperature", "max_new_tokens",
        "delay", "sync_every", "rewards", "weights",
    )  # fmt: skip
    return Arm(**{name: getattr(method, name) for name in kept})


def baselines(family: str, method: Arm) -> dict[str, Arm]:
    """The baselines of a family in the regime of a method.

    Where no step of a method of `skills` is on the target, every arm reads the target's texts after
    its RL (`past`), so that SFT on the target is no RL before that.
    """
    if family not in BASELINES:
        raise ValueError(f"family={family!r} is unknown; use one of {sorted(BASELINES)}")
    made = {name: make(plain(method)) for name, make in BASELINES[family].items()}
    if family == "mixtures" and method.stages:
        mixed = _on_texts(lambda count: shares(method))
        made["SFT on as many texts of each, mixed"] = mixed(plain(method))
    if family == "skills" and not shares(method)[-1]:
        made["SFT on the target"] = _untrained(plain(method))
    return made
