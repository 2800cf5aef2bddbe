"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, graded
from jaxrl.config import BanditConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Shares by shortfall against even ones, on domains from solved to hopeless."""
    method = arm(recipes.load("rulereasoner"), steps=80, weights=(1.0,) * 4)
    return Effect(
        claim="domains shared out by what they fall short are learned faster",
        task=graded(),
        method=method,
        ablation=dataclasses.replace(method, bandit=BanditConfig()),
        over="area",
    )
