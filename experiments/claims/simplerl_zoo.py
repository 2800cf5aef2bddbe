"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Arm, Effect, Sampled, arm, cipher, hard_prompts
from experiments.lab.tasks import EOS, FILLER
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes


def in_format(batch: Sampled) -> jax.Array:
    """1 if the answer is right and nothing else is written, -0.5 if wrong, -1 out of format [N]."""
    ended = jnp.any(batch.tokens == EOS, axis=1)
    bare = ended & ~jnp.any(batch.tokens == FILLER, axis=1)
    return jnp.where(bare, jnp.where(batch.rewards == 1, 1.0, -0.5), -1.0)


def effect() -> Effect:
    """A quarter of the prompts: those within reach, or the hardest, which are never solved.

    On `format`, 1 of 16 demonstrations keeps to the format; both arms train within reach.
    """
    passes = CurriculumConfig("passes")
    before = Arm(steps=32, learning_rate=0.0, curriculum=passes)  # the base model, twice each
    method = arm(
        recipes.load("simplerl_zoo"), sizes={"curriculum.keep": 64}, steps=60, before=before
    )
    hardest = dataclasses.replace(method.curriculum, score="difficulty")
    return Effect(
        claim="prompts within reach teach a weak policy more than the hardest",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, curriculum=hardest),
    ).also(
        "format",
        task=cipher(((20, 0.8),), (((3,), 1.0),), filler_rate=0.5, slack=8),
        ablation=dataclasses.replace(method, rewards=in_format),
    )
