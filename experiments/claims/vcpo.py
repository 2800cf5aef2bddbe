"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher, with_objective
from jaxrl.launch import recipes


def effect() -> Effect:
    """On data 64 steps old, with both controls and with neither."""
    method = arm(recipes.load("vcpo"), steps=120, delay=64)
    controls = {"step size": {"power": 0.0}, "least-variance baseline": {"baseline": "mean"}}
    without = {
        part: with_objective(dataclasses.replace(method.objective, policy_args=args))
        for part, args in controls.items()
    }
    bare = dataclasses.replace(method.objective, policy_args={"power": 0.0, "baseline": "mean"})
    return Effect(
        claim="on data 64 steps old, variance control keeps importance sampling stable",
        task=cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=bare),
        further=without,
        on_real_model=True,
    )
