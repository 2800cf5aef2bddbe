"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from experiments.lab import Arm, Effect, arm, cipher
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """One prompt in six, by alignment or by chance, where many are solved already or never."""
    before = Arm(steps=80, curriculum=CurriculumConfig("passes"))
    method = arm(recipes.load("limr"), sizes={"curriculum.keep": 42}, steps=60, before=before)
    chance = dataclasses.replace(method.curriculum, score="at_random")
    others = {"solvable, by chance": "solvable_at_random", "middle": "within_reach"}
    mix = (((3, 0, 0), 0.3), ((1, 2, 0), 0.4), ((0, 0, 3), 0.3))
    return Effect(
        claim="the prompts that learn as the average does teach faster than any others",
        task=cipher(((10, 0.97), (10, 0.4), (10, 0.01)), mix),
        method=method,
        ablation=dataclasses.replace(method, curriculum=chance),
        over="area",
        further={name: scored_by(score) for name, score in others.items()},
    )


def scored_by(score: str) -> Callable[[Arm], Arm]:
    """The method with prompts that are chosen by another score."""
    return lambda method: dataclasses.replace(
        method, curriculum=dataclasses.replace(method.curriculum, score=score)
    )
