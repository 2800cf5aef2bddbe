"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Sparse outcomes with the memory's reward and without."""
    method = arm(recipes.load("memory_r"), steps=80)
    return Effect(
        claim="where success is rare, likeness to remembered successes learns faster",
        task=cipher(((8, 0.6), (6, 0.3)), (((3, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig(), replay=None),
        over="area",
        on_real_model=True,
    )
