"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import Effect, Problems, Splits, Task, arm, split
from experiments.lab.tasks import ASK, EOS, FIRST, PAD, as_problems
from jaxrl.launch import recipes

SYMBOLS, LENGTH, BUDGET = 12, 3, 12


def score(answer: jax.Array, completion: jax.Array) -> jax.Array:
    """The share of the budget that is left when the codes have been written in their order."""

    def read(found: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
        wanted = jnp.asarray(answer)[jnp.minimum(found, LENGTH - 1)]
        found = found + ((found < LENGTH) & (token == wanted))
        return found, found == LENGTH

    _, done = jax.lax.scan(read, jnp.int32(0), completion)
    left = jnp.sum(done) - 2  # without the token that completes it, and room for the EOS
    return (jnp.maximum(left, 0) / (BUDGET - LENGTH)).astype(jnp.float32)


@functools.cache
def planted() -> Task:
    """Three codes among other tokens. Traces differ in how much stands between the codes.

    Demonstrations of the warm start have wrong codes at times; the solutions of problems have none.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 10])
        code = rng.permutation(SYMBOLS)

        def build(symbols: np.ndarray, *, imperfect: bool = False) -> Problems:
            right = FIRST + code[symbols]
            slips = rng.random(symbols.shape) < (0.3 if imperfect else 0.0)
            codes = np.where(slips, FIRST + rng.integers(SYMBOLS, size=symbols.shape), right)
            gold = np.full((len(symbols), BUDGET + 1), PAD)
            for row, said in zip(gold, codes, strict=True):
                places = np.sort(rng.permutation(rng.integers(LENGTH, BUDGET + 1))[:LENGTH])
                row[: places[-1] + 1] = FIRST + rng.integers(SYMBOLS, size=places[-1] + 1)
                row[places], row[places[-1] + 1] = said, EOS
            prompt = np.concatenate([FIRST + symbols, np.full((len(symbols), 1), ASK)], axis=1)
            return as_problems(prompt, right, gold)

        def draw(size: int) -> np.ndarray:
            return rng.integers(SYMBOLS, size=(size, LENGTH))

        train = build(split.distinct(draw, 256, held_out=False))
        test = build(split.distinct(draw, split.HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    return Task(FIRST + SYMBOLS, make, score)


def effect() -> Effect:
    """GRPO against imitation of as many solutions, by what held-out traces earn."""
    method = arm(recipes.load("vb_vs_vf_scaling"), steps=60)
    imitating = dataclasses.replace(method.objective, policy="chord", policy_args={"mu": 1.0})
    return Effect(
        claim="verdicts on its own traces teach more than as many traces of many kinds",
        task=planted(),
        method=method,
        ablation=dataclasses.replace(method, objective=imitating),
        statistic="score",
    )
