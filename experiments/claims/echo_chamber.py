"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, attempts, cipher
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

MIXTURE = (0.7, 0.3)


@functools.cache
def two_formats(mixture: tuple[float, float] = MIXTURE) -> Task:
    """A cipher whose demonstrations keep to one of two codes, and whose verifier takes both."""
    task = cipher(((12, 0.8), (8, 0.4)), (((2, 1), 1.0),), modes=2, accepted=mixture)

    def either(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return task.reward(jnp.asarray(answer).at[-1].set(-1), completion)

    return dataclasses.replace(task, reward=either)


def formats(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`dominance`, the share of the commonest format among right answers, and `pass@1`; [S].

    Right answers that mix the formats are of neither. With several samples also `pass@8`.
    """
    written, rewards = attempts(model, task, arm, params, samples=samples)
    codes = task.test.answer[..., :-1].reshape(*task.test.answer.shape[:-1], 2, -1)
    said = written.tokens[..., None, : codes.shape[-1]]
    right = (rewards == 1)[..., None] & np.all(said == codes[:, :, None], axis=-1)
    passed = rewards == 1
    count = np.maximum(passed.sum(axis=(1, 2)), 1)
    figures = {
        "dominance": right.sum(axis=(1, 2)).max(axis=-1) / count,
        "pass@1": passed.mean(axis=(1, 2)),
    }
    return figures | ({"pass@8": passed.any(axis=2).mean(axis=1)} if samples > 1 else {})


def effect() -> Effect:
    """The commonest format after expert iteration, and before it."""
    method = arm(recipes.load("echo_chamber"), steps=80)
    return Effect(
        claim="RL leaves one of the formats that pre-training has shown",
        task=two_formats(),
        method=method,
        ablation=dataclasses.replace(method, learning_rate=0.0),
        statistic="dominance",
        minimum=0.05,
        measure=formats,
    ).also("even formats", task=two_formats((0.5, 0.5)))
