"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm, cipher
from jaxrl.launch import recipes

LOW, BAND, NOISE = 0.80, 0.05, 0.01
"""Of the judge's scores: the least, how much more the best answer gets, and their deviation."""


def narrow(batch: Sampled) -> jax.Array:
    """[N, 2]: 1 for an answer that is right as a whole, and the judge's score."""
    exact = (batch.rewards > 0.99).astype(jnp.float32)
    noise = NOISE * jax.random.normal(batch.key, batch.rewards.shape)
    return jnp.stack([exact, LOW + BAND * batch.rewards + noise], axis=1)


def effect() -> Effect:
    """The judge's score in units of its history, and as it is."""
    method = arm(recipes.load("armed"), steps=80, rewards=narrow)
    return Effect(
        claim="a judge's score in a narrow band teaches once it is in units of its history",
        task=cipher(((12, 0.5), (6, 0.3)), partial=True),
        method=method,
        ablation=dataclasses.replace(method, renormalise=None),
    )
