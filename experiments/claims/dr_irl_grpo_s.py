"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Scaled and plain advantages, where one prompt in five is of the weak category."""
    method = arm(recipes.load("dr_irl_grpo_s"), steps=60)
    plain = ObjectiveConfig(advantage="sampled_advantages")
    return Effect(
        claim="a scale by difficulty raises the rare and weak category",
        task=cipher(((12, 0.8), (12, 0.4)), (((3, 0), 0.8), ((0, 3), 0.2))),
        method=method,
        ablation=dataclasses.replace(method, objective=plain),
        statistic="pass@1/1",
        over="area",
    )
