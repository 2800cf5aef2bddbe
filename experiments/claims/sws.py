"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Arm, Effect, arm, graded
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Problems made for weaknesses against as many of all kinds."""
    before = Arm(steps=16, curriculum=CurriculumConfig("passes"))
    method = arm(recipes.load("sws"), steps=60, weights=(1.0,) * 4, before=before)
    return Effect(
        claim="problems made of what a first run failed teach more than problems of all kinds",
        task=graded(),
        method=method,
        ablation=dataclasses.replace(method, before=None),
    )
