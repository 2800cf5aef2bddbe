"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher, former
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """With and without GEPO, where each symbol can be written in three ways."""
    measured = ObjectiveConfig(f"{former.__name__}:oorl", aggregation="seq-mean-token-mean")
    method = dataclasses.replace(arm(recipes.load("oorl_gepo"), steps=60), objective=measured)
    alone = ObjectiveConfig(aggregation="seq-mean-token-mean")
    return Effect(
        claim="preferences between sets of equivalent answers add to the verdicts",
        task=cipher(((12, 0.7), (8, 0.3)), (((1, 2), 1.0),), modes=3),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        over="area",
        former="a preference of every pair of answers, of weight 1, beside GRPO; the recipe has "
        "one of the mean of those that pass to the mean of the others, of 0.01, beside REINFORCE++",
        on_real_model=True,
    )
