"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """On data 8 steps old, against GRPO."""
    method = arm(recipes.load("scalerl"), steps=60, delay=8)
    grpo = ObjectiveConfig(aggregation="seq-mean-token-mean")
    return Effect(
        claim="on data 8 steps old, the recipe learns faster than GRPO",
        task=cipher(((12, 0.8), (8, 0.2)), (((3, 0), 0.5), ((1, 2), 0.5))),
        method=method,
        ablation=dataclasses.replace(method, objective=grpo, curriculum=CurriculumConfig()),
        over="area",
        on_real_model=True,
    )
