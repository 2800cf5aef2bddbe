"""SASR: after a warm-up, imitation fades as its gradient does, step by step.

Paper: Chen et al. 2025, "Step-wise Adaptive Integration of Supervised Fine-tuning and Reinforcement
Learning for Task-Specific LLMs"
Idea: how much is left to imitate is told by the gradient of imitation itself. While it is large,
steps imitate; as it shrinks against what it was after the warm-up, steps explore.
Formula: `p = g / (g + gamma g_warm)`; `p L_SFT + (1 - p) L_GRPO`
Claim: better than SFT, RL, and static mixtures of the two.
Reading: the rule is recalled. The paper draws the kind of each step with probability p from norms
at the parameters; here the two losses are mixed by p, the norm is taken at the logits, and its
value after the warm-up is a constant. The ablation is the static mixture of halves.
"""

import dataclasses

from jaxrl.config import Config, GuidanceConfig
from jaxrl.objective import ObjectiveConfig
from launch.lab import Effect, arm, hard_prompts
from launch.recipes import quickstart


def config() -> Config:
    """The quickstart with a solution beside each group."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="sasr",
        guidance=GuidanceConfig("data.guidance:expert_rows"),
        objective=ObjectiveConfig(
            policy="losses.mixed:sasr",
            advantage="losses.advantages:sampled_advantages",
        ),
    )


def effect() -> Effect:
    """The adaptive mixture against the static one."""
    method = arm(config(), steps=60)
    static = dataclasses.replace(
        method.objective, policy="losses.mixed:chord", policy_args={"mu": 0.5}
    )
    return Effect(
        claim="an adaptive mixture of imitation and exploration beats halves",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=static),
        over="area",
    )
