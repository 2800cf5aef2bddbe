"""CHORD: imitation as a term of the RL loss whose weight is annealed, not a stage before it.

Paper: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts: Harmonizing Supervised Fine-Tuning
and Reinforcement Learning via Dynamic Weighting"
Idea: an expert's solution stands beside the policy's samples of every prompt. It is imitated with
weight mu, the samples are trained by GRPO with weight 1 - mu, and mu falls from imitation to
exploration. Per token, imitation may also be weighted by p (1 - p).
Formula: `L = (1 - mu) L_GRPO + mu L_SFT`; `phi_t = sg(p_t (1 - p_t))` before each `log p_t`
Claim: stable learning, and gains over SFT, RL and SFT-then-RL.
Reading: both terms share one denominator; mu falls linearly; `phi` is off here. The ablation
samples beside the same experts and learns nothing from them.
"""

import dataclasses

from jaxrl.config import Config, GuidanceConfig
from jaxrl.objective import ObjectiveConfig
from launch.lab import Effect, arm, hard_prompts
from launch.recipes import quickstart


def config() -> Config:
    """The quickstart with an expert in each group."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="chord",
        guidance=GuidanceConfig("data.guidance:expert_rows"),
        objective=ObjectiveConfig(
            policy="losses.mixed:chord_annealed",
            policy_args={"decay_steps": 60},
            advantage="losses.advantages:sampled_advantages",
        ),
    )


def effect() -> Effect:
    """With and without learning from the experts, on prompts that hardly any sample passes."""
    method = arm(config(), steps=60)
    alone = ObjectiveConfig(advantage="losses.advantages:sampled_advantages")
    return Effect(
        claim="annealed imitation solves prompts that sampling cannot",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        statistic="pass@1/1",
    )
