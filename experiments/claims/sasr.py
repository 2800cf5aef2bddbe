"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.launch import recipes


def effect() -> Effect:
    """The adaptive mixture against the static one."""
    method = arm(recipes.load("sasr"), steps=60)
    static = dataclasses.replace(method.objective, policy="chord", policy_args={"mu": 0.5})
    return Effect(
        claim="an adaptive mixture of imitation and exploration beats halves",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=static),
        over="area",
    )
