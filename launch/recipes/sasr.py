"""SASR by a norm at the logits: imitation fades as its gradient does, step by step.

Paper: Chen et al. 2025, "Step-wise Adaptive Integration of Supervised Fine-tuning and Reinforcement
Learning for Task-Specific LLMs"
Idea: the gradient of imitation tells how much is left to imitate. While it is large, steps imitate;
as it shrinks against what it was after the warm-up, steps explore.
Formula: `p = g / (g + gamma g_warm)`; each step is `L_SFT` with probability p, else `L_GRPO`
Claim: better than SFT, RL, and static mixtures of the two.
Reading: the rule is recalled. The paper's norms are of the gradient at the parameters, in the last
imitation step and at the end of the warm-up. An objective sees log-probabilities before any
backward pass and keeps nothing between updates, so here the norm is one at the logits, and its
value after the warm-up a constant. The ablation is the static mixture of halves.
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.lab import Effect, arm, hard_prompts
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with a solution beside each group."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="sasr",
        extensions={"guidance": GuidanceConfig("expert_rows")},
        objective=ObjectiveConfig(
            policy="sasr",
            advantage="sampled_advantages",
        ),
    )


def effect() -> Effect:
    """The adaptive mixture against the static one."""
    method = arm(config(), steps=60)
    static = dataclasses.replace(method.objective, policy="chord", policy_args={"mu": 0.5})
    return Effect(
        claim="an adaptive mixture of imitation and exploration beats halves",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=static),
        over="area",
    )
