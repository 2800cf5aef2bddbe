"""CHORD-mu, both terms over one denominator: imitation as an annealed term of the RL loss.

Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts: Harmonizing Supervised Fine-Tuning
and Reinforcement Learning via Dynamic Weighting"
Idea: an expert's solution stands beside the policy's samples of every prompt. It is imitated with
weight mu, the samples are trained by GRPO with weight 1 - mu, and mu falls along half a cosine from
imitation to exploration. Per token, imitation may also be weighted by p (1 - p).
Formula: `L = (1 - mu) L_GRPO + mu L_SFT`; `phi_t = sg(p_t (1 - p_t))` before each `log p_t`
Claim: stable learning, and gains over SFT, RL and SFT-then-RL.
Reading: both terms share one denominator. This is CHORD-mu; `jaxrl.losses.mixed:chord` with `phi`
and its constant mu is CHORD-phi. The effect's mu falls over 60 steps, the run's over 200. The
ablation samples beside the same experts and learns nothing from them. Beside it stand a constant mu
of 0.1, and with that CHORD-phi.
"""

import dataclasses

from experiments.lab import Effect, arm, hard_prompts, with_objective
from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with an expert in each group."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="chord",
        extensions={"guidance": GuidanceConfig("expert_rows")},
        objective=ObjectiveConfig(
            policy="chord_annealed",
            advantage="sampled_advantages",
        ),
    )


def effect() -> Effect:
    """With and without learning from the experts, on prompts that hardly any sample passes."""
    method = arm(config(), sizes={"objective.policy_args.decay_steps": 60}, steps=60)
    alone = ObjectiveConfig(advantage="sampled_advantages")
    constant = ObjectiveConfig(
        policy="chord", policy_args={"mu": 0.1}, advantage="sampled_advantages"
    )
    phi = dataclasses.replace(constant, policy_args={"mu": 0.1, "phi": True})
    return Effect(
        claim="annealed imitation solves prompts that sampling cannot",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        statistic="pass@1/1",
        further={"constant mu": with_objective(constant), "phi": with_objective(phi)},
    )
