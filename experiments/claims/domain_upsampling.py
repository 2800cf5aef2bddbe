"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.corpora import BASE, corpora, general
from jaxrl.launch import recipes
from jaxrl.launch.recipes.skills.domain_upsampling import LAST, RAISED


def effect() -> Effect:
    """The domain upsampled in the last fifth against the base mixture throughout."""
    steps = 150
    raised = (round((1 - LAST) * steps), {"weights": RAISED})
    method = arm(
        recipes.load("domain_upsampling"),
        steps=steps,
        prompts=64,
        group_size=1,
        weights=BASE,
        stages=((0, {}), raised),
    )
    return Effect(
        claim="with the domain upsampled at the end, a model is better on web and domain together",
        task=corpora(),
        method=method,
        ablation=dataclasses.replace(method, stages=()),
        warm_steps=50,
        measure=general,
    ).also("many texts", task=corpora(few=512))
