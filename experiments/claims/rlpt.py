"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from experiments.lab import Arm, Effect, Sampled, Task, arm
from experiments.lab.chains import LENGTH, cut_text, is_prefix
from experiments.lab.policy import probabilities
from experiments.lab.tasks import FIRST
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params


def prefix(batch: Sampled) -> jax.Array:
    """RLPT's relaxed reward: the segment, or the segment and more of what follows."""
    answer = batch.problems.answer
    return is_prefix(answer[:, :LENGTH], batch.tokens, answer[:, LENGTH])


def derivation(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`derived`: probability of each right symbol among all symbols, given those before; [S]."""
    answer = task.test.answer[..., :LENGTH]
    tokens = np.concatenate([task.test.prompt, answer], axis=-1)
    p = np.asarray(probabilities(model, params, tokens))[:, :, LENGTH:-1, FIRST:]
    right = np.take_along_axis(p, (answer - FIRST)[..., None], axis=-1)[..., 0]
    return {"derived": (right / p.sum(axis=-1)).mean(axis=(1, 2))}


def effect() -> Effect:
    """Any beginning of what follows against the segment itself."""
    method = arm(recipes.load("rlpt"), steps=60, rewards=prefix)
    return Effect(
        claim="a reward for any beginning of the text teaches it sooner than one for the segment",
        task=cut_text(),
        method=method,
        ablation=dataclasses.replace(method, rewards=None),
        statistic="derived",
        stands_for="next_segment",
        over="area",
        measure=derivation,
    ).also("longer segments", task=cut_text(shortest=2))
