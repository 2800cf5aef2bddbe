"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """With a sampler renewed every 20 steps, the regression against the policy gradient."""
    method = arm(recipes.load("karl"), steps=80, sync_every=20)
    gradient = ObjectiveConfig(
        policy="reinforce",
        advantage_args={"scale": "none"},
        aggregation="seq-mean-token-mean",
    )
    return Effect(
        claim="with a sampler renewed every 20 steps, regression beats the policy gradient",
        task=cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=gradient),
    )
