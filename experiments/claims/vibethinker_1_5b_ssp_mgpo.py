"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """Against GRPO, on prompts from easy to hopeless."""
    method = arm(recipes.load("vibethinker"), steps=60)
    grpo = dataclasses.replace(method.objective, advantage_args={"strength": 0.0})
    mix = (((3, 0), 0.34), ((2, 1), 0.33), ((0, 3), 0.33))
    return Effect(
        claim="on prompts from easy to hopeless, the weight speeds learning up",
        task=cipher(((12, 0.95), (8, 0.3)), mix),
        method=method,
        ablation=dataclasses.replace(method, objective=grpo),
        over="area",
        on_real_model=True,
    )
