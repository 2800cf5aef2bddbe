"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Filtered against whole groups, under a reward model that cannot tell half right answers."""
    method = arm(recipes.load("pf_ppo"), steps=60, rewards=unsure_in_the_middle)
    return Effect(
        claim="the ends of the ranking teach better than all of it",
        task=cipher(((12, 0.8), (8, 0.3)), (((1, 2), 1.0),), partial=True),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig()),
        statistic="score",
    )


def unsure_in_the_middle(batch: Sampled) -> jax.Array:
    """All right is 1 and all wrong is 0; anything between gets a score at random."""
    between = (batch.rewards > 0) & (batch.rewards < 1)
    guess = jax.random.uniform(batch.key, batch.rewards.shape, maxval=0.95)
    return jnp.where(between, guess, batch.rewards)
