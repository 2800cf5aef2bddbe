"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, lookup
from jaxrl.launch import recipes


def effect() -> Effect:
    """Ratios by token against ratios by trajectory, in a world to be asked twice."""
    method = arm(recipes.load("loop_leave_one_out"), steps=40)
    whole = dataclasses.replace(method.objective, policy="ppo_trajectory")
    return Effect(
        claim="over 4 updates of a batch, ratios by token beat ratios by trajectory",
        task=lookup(hops=2),
        method=method,
        ablation=dataclasses.replace(method, objective=whole),
        over="area",
    )
