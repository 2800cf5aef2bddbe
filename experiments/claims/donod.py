"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from experiments.lab import Arm, Effect, Splits, Task, arm, cipher, held_out, prompts
from experiments.lab.tasks import FIRST, of_seed
from jaxrl.config import CurriculumConfig
from jaxrl.data.types import Problem
from jaxrl.launch import recipes
from jaxrl.launch.recipes.imitation.donod import SHARE, WRONG
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params


@functools.cache
def corrupted() -> Task:
    """A cipher, some of whose solutions for training are random symbols of the same number."""
    task = cipher(((12, 0.6),), (((3,), 1.0),))

    def make(seed: int) -> Splits:
        splits, rng = task.make(seed), np.random.default_rng([seed, 17])
        gold = splits.train.gold
        random = rng.integers(FIRST, FIRST + 12, size=gold.shape)
        wrong = (rng.random((len(gold), 1)) < WRONG) & (gold >= FIRST)
        gold = np.where(wrong, random, gold).astype(np.int32)
        return splits._replace(train=splits.train._replace(gold=gold))

    return dataclasses.replace(task, make=make)


def kept(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, and after the last step `clean`, of what DONOD keeps; [S]."""
    figures = held_out(model, task, arm, params, start, samples=samples)
    if samples == 1:
        return figures
    clean, reward = [], jax.jit(jax.vmap(task.reward))
    for place in range(len(task.seeds)):
        own = of_seed(task.train, place)
        every = [Problem(str(n), "", n) for n in range(len(own.prompt))]
        order = np.argsort(-prompts.closeness(task, model, place, start, every), kind="stable")
        right = np.asarray(reward(own.answer, own.gold))
        clean.append(right[order[: round(SHARE * len(order))]].mean())
    return figures | {"clean": np.array(clean)}


def effect() -> Effect:
    """The best 30% of the solutions against 30% at random, where 40% are wrong."""
    method = arm(recipes.load("donod"), steps=60)
    random = CurriculumConfig("jaxrl.data.selection.curriculum:uniform", prompts=round(SHARE * 256))
    return Effect(
        claim="fine-tuned on what DONOD keeps, a policy is better than on as many at random",
        task=corrupted(),
        method=method,
        ablation=dataclasses.replace(method, curriculum=random),
        measure=kept,
        portable=True,
    )
