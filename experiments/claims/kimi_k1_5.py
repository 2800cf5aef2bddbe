"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """Demonstrations with fillers: with the length reward and without."""
    method = arm(recipes.load("kimi_k1_5"), steps=40)
    plain = dataclasses.replace(method.objective, shaping="")
    return Effect(
        claim="the length reward shortens answers sooner",
        task=cipher(((12, 0.8), (6, 0.4)), (((2, 1), 1.0),), filler_rate=0.4, slack=6),
        method=method,
        ablation=dataclasses.replace(method, objective=plain),
        statistic="length",
        over="area",
        better="lower",
        minimum=0.2,
    )
