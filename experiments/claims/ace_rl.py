"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm, cipher
from jaxrl.launch import recipes
from jaxrl.launch.recipes.rewards.ace_rl import ITEMS

WRONG = 0.1
"""Share of the verdicts that are wrong."""


def checklist(batch: Sampled) -> jax.Array:
    """Share of the items that are found to be met, by a judge of each."""
    met = jnp.arange(ITEMS) < jnp.round(ITEMS * batch.rewards)[:, None]
    return jnp.mean(met ^ jax.random.bernoulli(batch.key, WRONG, met.shape), axis=1)


def whole(batch: Sampled) -> jax.Array:
    """1 where a judge of the whole finds all of it met."""
    met = batch.rewards > 1 - 0.5 / ITEMS
    found = met ^ jax.random.bernoulli(batch.key, WRONG, met.shape)
    return found.astype(jnp.float32)


def effect() -> Effect:
    """A verdict for each item against one for the whole, by judges that err equally often."""
    method = arm(recipes.load("ace_rl"), steps=80, rewards=checklist)
    return Effect(
        claim="verdicts on single constraints teach what one verdict on the whole does not",
        task=cipher(((12, 0.6), (6, 0.3)), (((2, 1), 1.0),), partial=True),
        method=method,
        ablation=dataclasses.replace(method, rewards=whole),
        statistic="score",
        stands_for="format_following",
        portable=True,
    )
