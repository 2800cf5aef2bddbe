"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.refusals import guarded, guarded_alone, refusals, refused
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Both rewards against the safety reward alone."""
    method = arm(recipes.load("alphaalign"), steps=80, rewards=guarded)
    return Effect(
        claim="a reward for helpful answers beside that for due refusals keeps both",
        task=refusals(),
        method=method,
        ablation=dataclasses.replace(method, rewards=guarded_alone, objective=ObjectiveConfig()),
        stands_for="guarded",
        measure=refused,
    ).also("control", task=refusals(spread=0))
