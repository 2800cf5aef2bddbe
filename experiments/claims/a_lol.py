"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """On samples of the initial policy alone, advantage against raw reward."""
    method = arm(recipes.load("a_lol"), steps=60, sync_every=10**6)
    raw = {"scale": "none", "baseline": "none"}
    return Effect(
        claim="offline, the advantage learns faster than the raw reward",
        task=cipher(((12, 0.9), (8, 0.2)), (((3, 0), 0.7), ((1, 2), 0.3))),
        method=method,
        ablation=dataclasses.replace(
            method, objective=dataclasses.replace(method.objective, advantage_args=raw)
        ),
        over="area",
    )
