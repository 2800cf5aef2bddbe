"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.shop import hits, shop
from jaxrl.launch import recipes


def effect() -> Effect:
    """All tasks at once against what is bought next alone, in a template that is new to it."""
    method = arm(
        recipes.load("p5_recommendation"),
        steps=240,
        prompts=64,
        group_size=1,
        weights=(1.0, 1.0, 1.0),
    )
    return Effect(
        claim="trained on all tasks, a policy finds what is bought next in a new template",
        task=shop(),
        method=method,
        ablation=dataclasses.replace(method, stages=((0, {"weights": (0.0, 0.0, 1.0)}),)),
        warm_steps=50,
        measure=hits,
    ).also("many texts", task=shop(texts=(256, 256, 256)))
