"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, graded
from jaxrl.config import BanditConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Shares by shortfall against even ones, on domains from solved to hopeless."""
    method = arm(recipes.load("rulereasoner"), steps=80, weights=(1.0,) * 4)
    args = {"temperature": 0.5, "floor": 0.1}
    method = dataclasses.replace(method, bandit=dataclasses.replace(method.bandit, args=args))
    return Effect(
        claim="domains shared out by what they fall short are learned faster",
        task=graded(),
        method=method,
        ablation=dataclasses.replace(method, bandit=BanditConfig()),
        over="area",
        former="a temperature of 0.5; the recipe has the authors' 0.3",
    )
