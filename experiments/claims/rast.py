"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, cipher, imitate, steering
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

LARGE = {
    "hidden_size": 64, "intermediate_size": 128, "num_layers": 3, "num_heads": 4, "num_kv_heads": 4,
}  # fmt: skip
"""Sizes of the lab's large model."""


def transfer(
    model: DecoderConfig,
    task: Task,
    arm: Arm,
    params: Params,
    start: Params,
    strength: float = 1.0,
    samples: int = 8,
) -> dict[str, np.ndarray]:
    """`pass@1` of the steered large model on the test split, exact, and of the `small` one; [S]."""
    large = dataclasses.replace(model, **LARGE)
    trained = imitate(task, large, 150)
    return jax.device_get(steering.steered(model, large, task, strength)(trained, params, start))


def alone(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`pass@1` of the trained model itself on the test split, exact; [S]."""
    return {"pass@1": jax.device_get(steering.alone(model, task)(params))}


def of_strength(strength: float) -> Callable[[Arm], Arm]:
    """The method with another lambda."""
    measure = functools.partial(transfer, strength=strength)
    return lambda method: dataclasses.replace(method, measure=measure)


def of_the_large(method: Arm) -> Arm:
    """The same RL of the large model itself."""
    return dataclasses.replace(method, model=LARGE, measure=alone)


def effect() -> Effect:
    """A large model steered by a small one, with RL of the small one and without."""
    method = arm(recipes.load("rast"), steps=60)
    return Effect(
        claim="what RL changed in a small model serves a large one that had none",
        task=cipher(((12, 0.8), (6, 0.3)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, learning_rate=0.0),
        further={
            "lambda of 1/2": of_strength(0.5),
            "lambda of 2": of_strength(2.0),
            "RL of the large model": of_the_large,
        },
        measure=transfer,
        portable=True,
    )
