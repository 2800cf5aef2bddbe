"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.config import BanditConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """The bandit against even shares, on sources from solved to hopeless that share no symbol."""
    method = arm(recipes.load("dump"), steps=80, weights=(1.0,) * 6)
    skills = tuple((8, skill) for skill in (0.97, 0.8, 0.6, 0.4, 0.2, 0.05))
    mix = tuple((tuple(3 * (i == d) for i in range(6)), 1 / 6) for d in range(6))
    return Effect(
        claim="sources shared out by their advantages are learned faster",
        task=cipher(skills, mix),
        method=method,
        ablation=dataclasses.replace(method, bandit=BanditConfig()),
        over="area",
    )
