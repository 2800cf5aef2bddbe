"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Thoughts and outcomes against outcomes, on answers of five steps."""
    method = arm(recipes.load("tp_grpo"), steps=60)
    return Effect(
        claim="rewards for thoughts reach the same accuracy in fewer samples",
        task=cipher(((12, 0.8), (8, 0.4)), (((2, 3), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig()),
        over="area",
        on_real_model=True,
    )
