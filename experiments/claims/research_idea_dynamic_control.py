"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.tradeoffs import controlled, even, tradeoffs
from jaxrl.launch import recipes


def effect() -> Effect:
    """Weights of the prompt against even ones, read at one of them."""
    method = arm(recipes.load("dynamic_control"), steps=80, weights=(1.0, 1.0, 1.0))
    return Effect(
        claim="one policy that is told the weights reaches what a policy of one weight reaches",
        task=tradeoffs(),
        method=method,
        ablation=dataclasses.replace(method, rewards=even),
        statistic="score/2",
        measure=controlled,
    ).also("weights not followed", task=tradeoffs(follows=0.0))
