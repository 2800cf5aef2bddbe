"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """On data 16 steps old, with the mask and without."""
    method = arm(recipes.load("icepop"), steps=80, delay=16)
    weighted = ObjectiveConfig(policy="decoupled_ppo")
    return Effect(
        claim="on data 16 steps old, leaving out tokens of discrepancy helps",
        task=cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=weighted),
    )
