"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm
from experiments.lab.facts import claimed, factuality, form, support
from jaxrl.data.rewards.judged.claims import factual
from jaxrl.launch import recipes


def knowledgeable(batch: Sampled) -> jax.Array:
    """KnowRL's reward of completions, [N]."""
    formed, refused = form(batch.tokens)
    share = support(batch.tokens, batch.problems.answer)
    return factual(batch.rewards, refused, share, formed)


def answers(batch: Sampled) -> jax.Array:
    """The same, where no claim is looked up."""
    formed, refused = form(batch.tokens)
    return factual(batch.rewards, refused, jnp.zeros_like(batch.rewards), formed)


def effect() -> Effect:
    """Claims looked up against answers alone."""
    method = arm(recipes.load("knowrl"), steps=80, rewards=knowledgeable)
    return Effect(
        claim="rewards for supported claims make fewer claims false, at equal accuracy",
        task=claimed(),
        method=method,
        ablation=dataclasses.replace(method, rewards=answers),
        statistic="false",
        better="lower",
        warm_steps=250,
        stands_for="known_facts",
        measure=factuality,
    ).also("control", task=claimed(skill=1.0))
