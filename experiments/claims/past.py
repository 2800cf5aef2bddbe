"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, held_out
from experiments.lab.skills import domains, read
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

READING_STEPS = 60


def injected(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`held_out` of the target's reader with the skill added, and `cosine`, of the skill and what
    reading changed; [S]. After the last step alone."""
    if samples == 1:
        return {}
    texts = np.concatenate([task.train.prompt, task.train.gold], axis=-1)
    rows = np.stack([row[d == 1] for row, d in zip(texts, task.train.domain, strict=True)])
    reader = read(model, READING_STEPS, start, rows)
    skill, knowledge = (jax.tree.map(jnp.subtract, p, start) for p in (params, reader))

    def product(a: Params, b: Params) -> jax.Array:
        parts = jax.tree.map(lambda x, y: jnp.sum(x * y, axis=tuple(range(1, x.ndim))), a, b)
        return sum(jax.tree.leaves(parts))

    norms = jnp.sqrt(product(skill, skill) * product(knowledge, knowledge))
    cosine = product(skill, knowledge) / jnp.maximum(norms, 1e-12)
    both = jax.tree.map(jnp.add, reader, skill)
    figures = held_out(model, task, arm, both, start, samples=samples)
    return figures | {"cosine": np.asarray(cosine)}


def effect() -> Effect:
    """The target's reader with the skill of the source, and without."""
    method = arm(recipes.load("past_skill_transfer"), steps=60, weights=(1.0, 0.0))
    return Effect(
        claim="a skill that RL has taught on one domain serves another that was only read",
        task=domains(),
        method=method,
        ablation=dataclasses.replace(method, learning_rate=0.0),
        measure=injected,
    ).also("control", task=domains(marked=1.0))
