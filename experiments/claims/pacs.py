"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Against the actor term alone."""
    method = arm(recipes.load("pacs"), steps=60)
    actor = ObjectiveConfig(
        policy="reinforce",
        advantage="rloo",
        aggregation="seq-mean-token-mean",
    )
    return Effect(
        claim="where prompts accept one of two codes unseen, the coupled loss keeps both alive",
        task=cipher(((12, 0.8), (6, 0.4)), (((2, 1), 1.0),), modes=2, accepted=(0.7, 0.3)),
        method=method,
        ablation=dataclasses.replace(method, objective=actor),
        statistic="pass@8",
    )
