"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax

from experiments.lab import Arm, Effect, Sampled, arm, cipher, with_objective
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Best of 8 against any of 8, at equal samples."""
    method = arm(recipes.load("raft"), steps=60)
    samples = method.prompts * method.group_size
    sizes = {f"best of {k}": groups_of(k, samples) for k in (4, 16)}
    rest = ObjectiveConfig(policy="expert_iteration", aggregation="seq-mean-token-sum")
    return Effect(
        claim="keeping the best of 8 beats keeping any",
        task=cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, rewards=nothing),
        further=sizes | {"every right sample": with_objective(rest)},
    )


def groups_of(size: int, samples: int) -> Callable[[Arm], Arm]:
    """The method with groups of this size, at as many samples a step."""
    return lambda method: dataclasses.replace(method, prompts=samples // size, group_size=size)


def nothing(batch: Sampled) -> jax.Array:
    """The same reward for all, so that the first of a group is kept."""
    return batch.rewards * 0.0
