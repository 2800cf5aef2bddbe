"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts, with_objective
from jaxrl.launch import recipes


def effect() -> Effect:
    """With and without learning from the experts, on prompts that hardly any sample passes."""
    method = arm(recipes.load("chord"), sizes={"objective.policy_args.decay_steps": 60}, steps=60)
    alone = dataclasses.replace(method.objective, policy="ppo_clip", policy_args={})
    constant = dataclasses.replace(method.objective, policy="chord", policy_args={"mu": 0.1})
    phi = dataclasses.replace(constant, policy_args={"mu": 0.1, "phi": True})
    return Effect(
        claim="annealed imitation solves prompts that sampling cannot",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        statistic="pass@1/1",
        further={"constant mu": with_objective(constant), "phi": with_objective(phi)},
    )
