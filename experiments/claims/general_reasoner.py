"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax

from experiments.lab import Effect, Sampled, arm
from experiments.lab.surfaces import accepted, same, surfaces, verified
from jaxrl.data.rewards.verifier import verified as rewarded
from jaxrl.launch import recipes


def by_verifier(batch: Sampled) -> jax.Array:
    """The reward, [N], by the verifier that was trained."""
    stated, passed = accepted(batch.tokens, batch.problems.answer)
    return rewarded(passed, stated, 0)


def by_text(batch: Sampled) -> jax.Array:
    """The same, where the reference alone is accepted."""
    stated, _ = accepted(batch.tokens, batch.problems.answer)
    return rewarded(same(batch), stated, 0)


def effect() -> Effect:
    """A trained verifier against identity with the reference."""
    method = arm(recipes.load("general_reasoner"), steps=80, rewards=by_verifier)
    return Effect(
        claim="a trained verifier teaches what a comparison of texts refuses",
        task=surfaces(),
        method=method,
        ablation=dataclasses.replace(method, rewards=by_text),
        stands_for="fractions",
        measure=verified,
    ).also("control", task=surfaces(forms=1))
