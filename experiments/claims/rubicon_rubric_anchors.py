"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Arm, Effect, Sampled, Task, arm, attempts, cipher, held_out, neutral
from experiments.lab.tasks import EOS, FILLER
from jaxrl.data.rewards.judged import rubrics
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SLACK, WANTED = 6, 2
"""Fillers that fit into an answer, and that are wanted in it."""


ANSWER = {
    "criteria": {
        "right": {"text": "right symbols", "weight": 2, "veto": 0.5},
        "whole": {"text": "no slip at all"},
        "ended": {"text": "comes to an end"},
        "rich": {"text": "fillers", "weight": 2, "saturation": WANTED / SLACK},
    },
    **{"interactions": [{"of": ["right", "rich"], "weight": 1}], "stretch": 2},
}


def marks(batch: Sampled) -> dict[str, jax.Array]:
    """What four judges give, each [N] from 0 to 1."""
    return {
        "right": batch.rewards,
        "whole": jnp.where(batch.rewards > 0.99, 1.0, 0.0),
        "ended": jnp.any(batch.tokens == EOS, axis=1).astype(jnp.float32),
        "rich": jnp.minimum(jnp.sum(batch.tokens == FILLER, axis=1) / SLACK, 1.0),
    }


def anchored(batch: Sampled) -> jax.Array:
    """The reward of the rubric, by the function that serves every run."""
    rubric = rubrics.parse(ANSWER)

    def score(given: dict[str, Any]) -> np.ndarray:
        rows = zip(*(np.ravel(given[name]).tolist() for name in ANSWER["criteria"]), strict=True)
        named = (dict(zip(ANSWER["criteria"], row, strict=True)) for row in rows)
        values = [rubrics.total(rubric, rubric.criteria, one).value for one in named]
        return np.array(values, np.float32).reshape(np.shape(given["right"]))

    shape = jax.ShapeDtypeStruct(batch.rewards.shape, jnp.float32)
    return jax.pure_callback(score, shape, marks(batch), vmap_method="expand_dims")


def linear(batch: Sampled) -> jax.Array:
    """The weighted mean of the same marks."""
    weights = {name: each.get("weight", 1) for name, each in ANSWER["criteria"].items()}
    given = marks(batch)
    return sum(weight * given[name] for name, weight in weights.items()) / sum(weights.values())


def hacked(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`; `hacked`, the share of answers with too many fillers; [S]."""
    tokens = attempts(model, task, arm, params, samples=1)[0].tokens
    over = np.sum(tokens == FILLER, axis=-1) > 2 * WANTED
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"hacked": over.mean(axis=(1, 2))}


def effect() -> Effect:
    """The rubric with its devices against the weighted sum of its marks."""
    method = arm(recipes.load("rubicon"), steps=80, rewards=anchored)
    return Effect(
        claim="veto, saturation and interaction keep a criterion from being pushed at all costs",
        task=cipher(((12, 0.8), (6, 0.3)), filler_rate=0.1, slack=SLACK, partial=True),
        method=method,
        ablation=dataclasses.replace(method, rewards=linear),
        statistic="hacked",
        better="lower",
        stands_for="format_following",
        measure=hacked,
    ).also("neutral", task=neutral(), statistic="pass@1", better="higher", measure=None)
