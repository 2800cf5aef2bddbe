"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """With and without GEPO, where each symbol can be written in three ways."""
    method = arm(recipes.load("oorl_gepo"), steps=60)
    alone = dataclasses.replace(method.objective, policy="ppo_clip")
    return Effect(
        claim="preferences between sets of equivalent answers add to the verdicts",
        task=cipher(((12, 0.7), (8, 0.3)), (((1, 2), 1.0),), modes=3),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        over="area",
        on_real_model=True,
    )
