"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

from experiments.lab import Effect, arm, cipher, held_out
from jaxrl.launch import recipes


def effect() -> Effect:
    """The mask against none, where most words never fit."""
    method = arm(recipes.load("nlpo"), steps=80)
    return Effect(
        claim="among the likely words of an earlier policy, PPO learns faster",
        task=cipher(((16, 0.8), (8, 0.4)), (((3, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, nucleus=None),
        over="area",
        measure=functools.partial(held_out, temperature=0.01),
        portable=True,
    )
