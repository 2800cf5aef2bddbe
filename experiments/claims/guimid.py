"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.navigation import navigation
from jaxrl.launch import recipes
from jaxrl.launch.recipes.skills.guimid import MID, MIXTURE, TARGET


def effect() -> Effect:
    """Arithmetic and logic before the trajectories against the trajectories alone."""
    steps = 240
    target = {"weights": TARGET}
    method = arm(
        recipes.load("guimid"),
        steps=steps,
        prompts=48,
        group_size=1,
        weights=MIXTURE,
        stages=((0, {}), (round(MID * steps), target)),
    )
    return Effect(
        claim="after mid-training on other tasks, few trajectories are enough for more",
        task=navigation(),
        method=method,
        ablation=dataclasses.replace(method, stages=((0, target),)),
        warm_steps=100,
    ).also("many trajectories", task=navigation(few=512))
