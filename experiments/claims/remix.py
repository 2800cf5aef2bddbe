"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """Each rollout used again and again against once, at equal rollouts."""
    method = arm(recipes.load("remix"), steps=80)
    return Effect(
        claim="replayed rollouts learn faster from as many fresh ones",
        task=cipher(((12, 0.8), (6, 0.3)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, replay=None, updates_per_batch=1),
        over="area",
    )
