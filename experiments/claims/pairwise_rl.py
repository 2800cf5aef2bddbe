"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.preferences import compared, preferred, scored
from jaxrl.launch import recipes


def effect() -> Effect:
    """A pair model against a scalar one, both from the same comparisons."""
    method = arm(recipes.load("pairwise_rl"), steps=40, rewards=preferred)
    return Effect(
        claim="a pair model and an anchor resist constants that a scalar model leaves open",
        task=compared(),
        method=method,
        ablation=dataclasses.replace(method, rewards=scored),
        stands_for="judge",
    ).also("control", task=compared(offset=0.0))
