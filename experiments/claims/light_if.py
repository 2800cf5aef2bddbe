"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from experiments.lab.phases import PRIMED
from jaxrl.launch import recipes
from jaxrl.launch.recipes.demonstrations.light_if import COLD_START
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Both phases with the entropy in mind and without, on four constraints, rewarded in part."""
    method = arm(recipes.load("light_if"), steps=60)
    plain = ObjectiveConfig(PRIMED, {"priming_steps": COLD_START}, advantage="sampled_advantages")
    return Effect(
        claim="phases that keep entropy meet all constraints more often than plain ones",
        task=cipher(((12, 0.7), (12, 0.1)), (((2, 2), 1.0),), partial=True),
        method=method,
        ablation=dataclasses.replace(method, objective=plain),
    )
