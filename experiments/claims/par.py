"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm, cipher, with_objective
from experiments.lab.tasks import FILLER
from jaxrl.launch import recipes


def effect() -> Effect:
    """Shaped against raw scores of a reward model that fillers impress without bound."""
    method = arm(recipes.load("par"), steps=80, rewards=likes_fillers)
    raw = dataclasses.replace(method.objective, shaping="")
    others = {
        name: with_objective(dataclasses.replace(raw, shaping=f"{__name__}:{shaping.__name__}"))
        for name, shaping in (("clip", clipped), ("min-max", ranged), ("z-score", standardised))
    }
    return Effect(
        claim="preference over a reference resists a hackable reward model",
        task=cipher(
            ((12, 0.8), (6, 0.3)), (((2, 1), 1.0),), filler_rate=0.1, slack=2, partial=True
        ),
        method=method,
        ablation=dataclasses.replace(method, objective=raw),
        statistic="score",
        further=others,
    )


def clipped(rewards: jax.Array, *, expert: jax.Array, valid: jax.Array) -> jax.Array:
    """Rewards [N], within a standard deviation of the mean of the samples."""
    own = valid & ~expert
    mean, std = jnp.mean(rewards, where=own), jnp.std(rewards, where=own)
    return jnp.clip(rewards, mean - std, mean + std)


def ranged(rewards: jax.Array, *, expert: jax.Array, valid: jax.Array) -> jax.Array:
    """Rewards [N], 0 for the least of the samples and 1 for the largest."""
    own = valid & ~expert
    low = jnp.min(rewards, where=own, initial=jnp.inf)
    high = jnp.max(rewards, where=own, initial=-jnp.inf)
    return (rewards - low) / jnp.maximum(high - low, 1e-6)


def standardised(rewards: jax.Array, *, expert: jax.Array, valid: jax.Array) -> jax.Array:
    """Rewards [N], less the mean of the samples, in units of their standard deviation."""
    own = valid & ~expert
    mean, std = jnp.mean(rewards, where=own), jnp.std(rewards, where=own)
    return (rewards - mean) / jnp.maximum(std, 1e-6)


def likes_fillers(batch: Sampled) -> jax.Array:
    """Twice the share of right symbols, and 0.75 for every filler: most for fillers alone."""
    return 2.0 * batch.rewards + 0.75 * jnp.sum(batch.tokens == FILLER, axis=1)
