"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, graded
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """The prompts that the greedy answer does not solve, against all, at equal steps."""
    method = arm(recipes.load("self_low_likelihood_rlvr"), steps=60)
    return Effect(
        claim="training on what is unlikely widens what 8 samples can solve",
        task=graded(),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig()),
        statistic="pass@8",
    )
