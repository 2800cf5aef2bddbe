"""RL-PLUS: solutions from outside, under multiple importance sampling, weighted to explore.

Paper: Dong et al. 2025, "RL-PLUS: Countering Capability Boundary Collapse of LLMs in Reinforcement
Learning with Hybrid-policy Optimization"
Idea: a solution joins each group. Who wrote it is unknown, so its policy is estimated by half the
old policy and half chance, and mixed with the old policy in the ratio's denominator: no weight
explodes or vanishes. Right tokens that the policy finds unlikely get most of the credit.
Formula: `r = 2 pi / (pi_w + pi_old)`, `pi_w = pi_old / 2 + 1 / (2 V)`, `A_t = A (1 - sg(pi))^gamma`
Claim: the boundary of what can be solved (pass@k) grows where RLVR narrows it.
Reading: the solution's advantage is that of its group, itself included; gamma = 2. The ablation
samples beside the same solutions and learns nothing from them.
"""

import dataclasses

from jaxrl.config import Config, GuidanceConfig
from jaxrl.objective import ObjectiveConfig
from launch.lab import Effect, arm, hard_prompts
from launch.recipes import quickstart


def config() -> Config:
    """The quickstart with a solution in each group."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="rl_plus",
        guidance=GuidanceConfig("data.guidance:expert_rows"),
        objective=ObjectiveConfig(
            policy="losses.mixed:rl_plus", policy_args={"vocabulary_size": 15}
        ),
    )


def effect() -> Effect:
    """With and without the external term: what 8 samples can solve."""
    method = arm(config(), steps=60)
    alone = ObjectiveConfig(advantage="losses.advantages:sampled_advantages")
    return Effect(
        claim="solutions from outside widen what 8 samples can solve",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        statistic="pass@8",
    )
