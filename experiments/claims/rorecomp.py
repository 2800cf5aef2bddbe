"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Recomposed batches against whole ones, on long-tailed lengths."""
    method = arm(recipes.load("rorecomp"), steps=60)
    return Effect(
        claim="recomposed batches shorten responses",
        task=cipher(((12, 0.8), (6, 0.4)), (((2, 1), 1.0),), filler_rate=0.4, slack=8),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig(), replay=None),
        statistic="length",
        better="lower",
        minimum=0.2,
    )
