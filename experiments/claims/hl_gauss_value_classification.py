"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax

from experiments.lab import Effect, Sampled, arm, cipher
from jaxrl.launch import recipes
from jaxrl.models.value import ValueConfig


def effect() -> Effect:
    """Bins against a scalar, under noisy rewards within the range of the bins, mostly."""
    method = arm(recipes.load("hl_gauss_critic"), steps=80, rewards=noisy)
    scalar = dataclasses.replace(method.critic, head=ValueConfig(), clip=0.0)
    return Effect(
        claim="under noisy rewards, a critic that classifies learns faster than one that regresses",
        task=cipher(((8, 0.8), (6, 0.3)), (((2, 2), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, critic=scalar),
        over="area",
    )


def noisy(batch: Sampled) -> jax.Array:
    """The verdict with Gaussian noise of deviation 1/2."""
    return batch.rewards + 0.5 * jax.random.normal(batch.key, batch.rewards.shape)
