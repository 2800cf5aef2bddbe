"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """The order against none, on prompts of many lengths and difficulties."""
    sizes = {"curriculum.args.width": 40.0, "curriculum.args.speed": 10.0}
    method = arm(recipes.load("gain_rl"), sizes=sizes, steps=60)
    mix = tuple((counts, 0.2) for counts in ((2, 0), (1, 1), (2, 1), (1, 2), (3, 1)))
    return Effect(
        claim="prompts in the order of their angles are learned faster",
        task=cipher(((20, 0.8), (16, 0.3)), mix),
        method=method,
        ablation=dataclasses.replace(method, curriculum=CurriculumConfig()),
        over="area",
        on_real_model=True,
    )
