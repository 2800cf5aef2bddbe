"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm
from experiments.lab.confidence import SOURCES, calibration, confidence, uncertain
from jaxrl.launch import recipes
from jaxrl.losses.regularizers import calibrated_reward


def right_and_honest(batch: Sampled) -> jax.Array:
    """RLCR's reward of completions."""
    stated = confidence(batch.tokens)
    return jnp.where(jnp.isnan(stated), -1.0, calibrated_reward(batch.rewards, stated))


def effect() -> Effect:
    """Calibration with the Brier term in the reward and without."""
    method = arm(recipes.load("rlcr"), steps=100, rewards=right_and_honest)
    return Effect(
        claim="the Brier term makes stated confidences true",
        task=uncertain(),
        method=method,
        ablation=dataclasses.replace(method, rewards=None),
        statistic="ece",
        better="lower",
        stands_for="calibrated",
        measure=calibration,
    ).also("own errors", task=uncertain(usual=(1.0,) * SOURCES))
