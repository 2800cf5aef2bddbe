"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Demonstrations with many fillers: with stages and penalty, and without either."""
    method = arm(recipes.load("campo"), steps=60)
    plain = dataclasses.replace(method, objective=ObjectiveConfig())
    task = functools.partial(cipher, ((12, 0.8), (6, 0.4)), (((2, 1), 1.0),), slack=8)
    stages = ((0, {"max_new_tokens": 6}), (30, {"max_new_tokens": 12}))
    return Effect(
        claim="stages and penalty shorten answers",
        task=task(filler_rate=0.6),
        method=arm(recipes.load("campo"), steps=60, stages=stages),
        ablation=plain,
        statistic="length",
        over="area",
        better="lower",
        minimum=0.2,
        warm_steps=500,
    ).also("control", task=task(filler_rate=0.0))
