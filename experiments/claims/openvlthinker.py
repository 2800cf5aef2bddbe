"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Turns of RL and imitation of its right answers against RL alone."""
    method = arm(recipes.load("openvlthinker"), steps=80)
    return Effect(
        claim="phases of imitation of its own right answers add to RL at equal updates",
        task=cipher(((12, 0.8), (8, 0.2)), (((2, 1), 0.5), ((1, 2), 0.5))),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig()),
        over="area",
        on_real_model=True,
    )
