"""RAST: what RL changed in a small model is added to a large one at every token, untrained.

Paper: Ouyang et al. 2025, "RAST: Reasoning Activation in LLMs via Small-model Transfer"
Idea: RL moves few tokens, and moves them alike in models of all sizes. So train a small one, and at
decoding add the difference of its logits, trained less untrained, to those of the large one.
Formula: `logits = large + lambda (small_RL - small)`
Claim: large base models gain on mathematics, now and then more than by RL of their own, at a small
part of the memory.
Reading: formula recalled; lambda is 1. `config()` trains the small model and `steered` guides the
sampler of the large one; it is proxy-tuning (Liu et al. 2024) with RL in the place of tuning. The
ablation is the large model as it is; beside it stand other lambdas, and RL of the large model.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from experiments.lab import Arm, Effect, Task, arm, cipher, imitate, steering
from jaxrl.config import Config, FreshModel
from jaxrl.launch.recipes import quickstart
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling.logits import Guide, proxy_tuning
from jaxrl.types import Params


def config() -> Config:
    """The quickstart with a model of a quarter of the size."""
    small = FreshModel(64, 192, 4, 2, 2, 32)
    return dataclasses.replace(quickstart.config(), recipe="rast", fresh=small)


def steered(small: DecoderConfig, tuned: Params, untuned: Params, strength: float = 1.0) -> Guide:
    """What `sampler.generate` takes as `guide` for a large model of the same vocabulary.

    Args:
      small: the small model's shape.
      tuned, untuned: its parameters after and before RL, each as from `decoder.unstack`.
      strength: lambda.
    """
    return Guide(proxy_tuning, strength, (small, small), (tuned, untuned))


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
    method = arm(config(), steps=60)
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
