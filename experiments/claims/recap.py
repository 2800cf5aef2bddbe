"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Arm, Effect, arm, cipher
from jaxrl.config import BanditConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Two domains that the policy knows and a new one, with moving shares and with even ones."""
    method = arm(recipes.load("recap"), steps=80, weights=(1.0,) * 3)
    skills, mix = ((24, 0.9), (24, 0.9), (24, 0.3)), ((2, 0, 0), (0, 2, 0), (0, 0, 2))
    return Effect(
        claim="shares that follow convergence and instability do better over all domains than even",
        task=cipher(skills, tuple((counts, 1.0) for counts in mix)),
        method=method,
        ablation=dataclasses.replace(method, bandit=BanditConfig()),
        further={"no replay": new_alone},
        over="area",
    )


def new_alone(method: Arm) -> Arm:
    """The method on the new domain alone."""
    return dataclasses.replace(method, bandit=BanditConfig(), weights=(0.0, 0.0, 1.0))
