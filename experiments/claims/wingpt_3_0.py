"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax

from experiments.lab import Effect, Sampled, arm
from experiments.lab.scratchpads import by_reference, scratchpads
from jaxrl.launch import recipes

WEIGHT = 0.5
"""Of the rule, as in the toy's task."""


def mixed(batch: Sampled) -> jax.Array:
    """[N] the rule's verdict of the answer and the reward model's score of the steps, half each."""
    return WEIGHT * batch.rewards + (1 - WEIGHT) * by_reference(batch)


def effect() -> Effect:
    """RL on both rewards after SFT, and SFT alone."""
    method = arm(recipes.load("wingpt"), steps=80, rewards=mixed)
    return Effect(
        claim="after SFT, RL on a rule and a reward model adds to the accuracy",
        task=scratchpads(),
        method=method,
        ablation=dataclasses.replace(method, learning_rate=0.0),
        stands_for="arithmetic",
    )
