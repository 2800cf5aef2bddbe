"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, former
from experiments.lab.refusals import refusals, refused, safe, safe_and_helpful
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Both rewards against the safety reward alone."""
    method = arm(recipes.load("alphaalign"), steps=80, rewards=safe_and_helpful)
    measured = ObjectiveConfig(shaping=f"{former.__name__}:dual")
    method = dataclasses.replace(method, objective=measured)
    return Effect(
        claim="a reward for helpful answers beside that for due refusals keeps both",
        task=refusals(),
        method=method,
        ablation=dataclasses.replace(method, rewards=safe, objective=ObjectiveConfig()),
        stands_for="guarded",
        former="scores by their range, and -1 for a breach; the recipe has the paper's z-scores of "
        "at least 0, added to the reward for safety",
        measure=refused,
    ).also("control", task=refusals(spread=0))
