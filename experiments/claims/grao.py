"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, former, hard_prompts
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """With and without the reference, on prompts that samples fail."""
    measured = ObjectiveConfig(f"{former.__name__}:grao", aggregation="seq-mean-token-sum")
    method = dataclasses.replace(arm(recipes.load("grao"), steps=60), objective=measured)
    alone = ObjectiveConfig(advantage="sampled_advantages", aggregation="seq-mean-token-sum")
    return Effect(
        claim="references in the loss beat GRPO beside them",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        former="sums over tokens and an alignment of 0.5; the recipe has means over tokens and 0.6",
    )
