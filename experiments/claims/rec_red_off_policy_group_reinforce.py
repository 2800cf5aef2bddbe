"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """On data up to 20 steps old, with the clip and without."""
    method = arm(recipes.load("rec_group_reinforce"), steps=80, sync_every=20)
    free = dataclasses.replace(method.objective, policy_args={"side": "none"})
    return Effect(
        claim="on data up to 20 steps old, the clip keeps REINFORCE from collapse",
        task=cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=free),
        on_real_model=True,
    )
