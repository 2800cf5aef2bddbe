"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm
from experiments.lab.chains import LENGTH, phrased
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def reference_logp(batch: Sampled, work: int) -> jax.Array:
    """[N, LENGTH] of the reference answer behind the first `work` tokens of what was written."""
    parts = batch.problems.prompt, batch.tokens[:, :work], batch.problems.gold[:, LENGTH:-1]
    return batch.score(jnp.concatenate(parts, axis=1))[:, -LENGTH:]


def probability(batch: Sampled) -> jax.Array:
    """RLPR's reward."""
    given = jnp.mean(jnp.exp(reference_logp(batch, LENGTH)), axis=1)
    without = jnp.mean(jnp.exp(reference_logp(batch, 0)), axis=1)
    return jnp.clip(given - without, 0.0, 1.0)


def likelihood(batch: Sampled) -> jax.Array:
    """VeriFree's: the product."""
    return jnp.exp(jnp.sum(reference_logp(batch, LENGTH), axis=1))


def effect() -> Effect:
    """Mean probability against likelihood, as a verifier that neither has heard sees it."""
    method = arm(recipes.load("rlpr"), steps=80, rewards=probability)
    return Effect(
        claim="the mean probability of a reference teaches more than its likelihood",
        task=phrased(),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig(), rewards=likelihood),
        stands_for="policy_reward",
    ).also("control", task=phrased(rare=0.0))
