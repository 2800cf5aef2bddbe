"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax

from experiments.lab import Effect, Sampled, arm, cipher
from experiments.lab.variants import wrong_verdicts
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def flipped(batch: Sampled) -> jax.Array:
    """One verdict in ten is wrong."""
    return wrong_verdicts(batch, 0.1)


def effect() -> Effect:
    """Against GRPO, under a verifier that errs."""
    method = arm(recipes.load("lite_ppo"), steps=80, rewards=flipped)
    return Effect(
        claim="under a verifier that errs one time in ten, the two beat GRPO",
        task=cipher(
            ((12, 0.95), (8, 0.2)), (((3, 0), 0.5), ((0, 3), 0.5)), filler_rate=0.2, slack=3
        ),
        method=method,
        ablation=dataclasses.replace(
            method, objective=ObjectiveConfig(aggregation="seq-mean-token-mean")
        ),
        over="area",
    )
