"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Effect, Sampled, arm, cipher
from experiments.lab.tasks import EOS
from jaxrl.data.rewards import text
from jaxrl.launch import recipes


def overlap(batch: Sampled) -> jax.Array:
    """BLEU of completions against the reference, tokens being words."""

    def words(row: np.ndarray) -> str:
        return " ".join(str(token) for token in row if token > EOS)

    def score(tokens: np.ndarray, gold: np.ndarray) -> np.ndarray:
        rows = zip(*(np.reshape(a, (-1, a.shape[-1])) for a in (tokens, gold)), strict=True)
        scores = [text.bleu(words(said), words(wanted)) for said, wanted in rows]
        return np.array(scores, np.float32).reshape(tokens.shape[:-1])

    shape = jax.ShapeDtypeStruct(batch.rewards.shape, jnp.float32)
    return jax.pure_callback(
        score, shape, batch.tokens, batch.problems.gold, vmap_method="expand_dims"
    )


def exact(batch: Sampled) -> jax.Array:
    """1 for the reference itself."""
    return jnp.all(batch.tokens == batch.problems.gold, axis=1).astype(jnp.float32)


def effect() -> Effect:
    """Overlap against identity, as a verifier that takes every right answer sees it."""
    method = arm(recipes.load("bleuberi"), steps=80, rewards=overlap)
    return Effect(
        claim="overlap with one reference teaches what identity with it cannot",
        task=cipher(((6, 0.8), (6, 0.4)), (((3, 2), 1.0),), modes=2),
        method=method,
        ablation=dataclasses.replace(method, rewards=exact),
        stands_for="translation",
        portable=True,
    )
