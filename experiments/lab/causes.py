"""Verdicts with a cause: what is found in a prompt, and whether the prompt is flawed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm
from experiments.lab.effect import attempts, held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, LENGTH, DANGEROUS = 14, 4, 6
"""Symbols of the task and of a prompt, and how many of them are a flaw."""
SAFE, FLAWED = FIRST + 2 * SYMBOLS, FIRST + 2 * SYMBOLS + 1


@functools.cache
def causes(
    *, named: float = 0.4, noticed: float = 0.7, spare: float = 0.2, problems: int = 256
) -> Task:
    """Name the cause, then the verdict: half of the prompts have one dangerous symbol.

    The cause is that symbol's code, or `FILLER` where there is none. `answer` is cause and verdict.

    Args:
      named: probability that a demonstration names the right cause of a flaw; otherwise it is the
        cause of another dangerous symbol.
      noticed: probability that its verdict is right.
      spare: probability that it names a cause where there is none.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 14])
        names, code = rng.permutation(SYMBOLS), rng.permutation(SYMBOLS)

        def draw(size: int) -> np.ndarray:
            content = rng.integers(DANGEROUS, SYMBOLS, size=(size, LENGTH))
            bad = rng.random(size) < 0.5
            place = rng.integers(LENGTH, size=size)
            content[bad, place[bad]] = rng.integers(DANGEROUS, size=bad.sum())
            return content

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, found = len(content), content.min(axis=1)
            flawed = found < DANGEROUS
            right = rng.random(size) < (named if imperfect else 1.0)
            other = rng.integers(1, DANGEROUS, size=size)
            said = np.where(right, found, (found + other) % DANGEROUS)
            stated = flawed | (imperfect & (rng.random(size) < spare))
            cause, true = (FIRST + SYMBOLS + code[s % SYMBOLS] for s in (said, found))
            cause = np.where(stated, cause, FILLER)
            noted = flawed == (rng.random(size) < (noticed if imperfect else 1.0))
            verdicts = [np.where(f, FLAWED, SAFE) for f in (noted, flawed)]
            gold = np.stack([cause, verdicts[0], np.full(size, EOS)], axis=1)
            answer = np.stack([np.where(flawed, true, FILLER), verdicts[1]], axis=1)
            prompt = np.concatenate([FIRST + names[content], np.full((size, 1), ASK)], axis=1)
            return as_problems(prompt, answer, gold)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return jnp.all(completion == jnp.append(answer, EOS)).astype(jnp.float32)

    return Task(FLAWED + 1, make, reward)


def verdict(tokens: jax.Array, answers: jax.Array) -> jax.Array:
    """Whether the verdict of completions [..., T] is right, whatever the cause; [...] float32."""
    return jnp.asarray((tokens[..., 1] == answers[..., 1]) & (tokens[..., 2] == EOS), jnp.float32)


def judged(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, whose pass@1 is of verdict and cause, and `label`, the share of
    right verdicts; [S]."""
    tokens = attempts(model, task, arm, params, samples=1)[0].tokens
    right = verdict(tokens, task.test.answer[:, :, None])
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"label": np.asarray(right).mean(axis=(1, 2))}
