"""Answers with a stated confidence: the task, the parsed confidence, and its calibration."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm
from experiments.lab.effect import attempts
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, SOURCES, BINS = 12, 8, 11
KNOWN = tuple(np.linspace(0.15, 0.95, SOURCES))
"""How often the usual answer of each source is right, where no other is asked for."""


@functools.cache
def uncertain(*, usual: tuple[float, ...] = KNOWN) -> Task:
    """Answers that are random given the prompt; the policy writes one and its confidence in it.

    A prompt is a source and two symbols. The most likely answer is the code of each symbol, and the
    source determines how often it is right. Otherwise the first code is another one.

    Args:
      usual: how often that answer is right, of each source: the most that can be known.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 6])
        codes, known = rng.permutation(SYMBOLS), rng.permutation(usual)

        def draw(size: int) -> np.ndarray:
            source, pair = rng.integers(SOURCES, size=size), rng.integers(SYMBOLS, size=(size, 2))
            return np.concatenate([source[:, None], pair], axis=1)

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, source, pair = len(content), content[:, 0], content[:, 1:]
            taken = rng.random(size) < (0.7 if imperfect else known[source])
            other = rng.integers(1, SYMBOLS, size=size)
            said = codes[pair]
            said[:, 0] = np.where(taken, said[:, 0], (said[:, 0] + other) % SYMBOLS)
            sure = FIRST + SYMBOLS + SOURCES + rng.integers(BINS, size=size)
            stated = [FIRST + said, sure[:, None], np.full((size, 1), EOS)]
            asked = [FIRST + SYMBOLS + source[:, None], FIRST + pair, np.full((size, 1), ASK)]
            prompt, gold = np.concatenate(asked, axis=1), np.concatenate(stated, axis=1)
            return as_problems(prompt, FIRST + said, gold)

        train = build(split.distinct(draw, 256, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return jnp.all(completion[:2] == answer).astype(jnp.float32)

    return Task(FIRST + SYMBOLS + SOURCES + BINS, make, reward)


def confidence(tokens: jax.Array) -> jax.Array:
    """Stated in completions [..., T]: in [0, 1], or nan where nothing is."""
    stated = tokens[..., 2] - FIRST - SYMBOLS - SOURCES
    return jnp.where((stated >= 0) & (tokens[..., 3] == EOS), stated / (BINS - 1), jnp.nan)


def calibration(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`brier`; `ece`, the expected calibration error over stated values; `pass@1`. Each [S].

    What states no confidence counts as stating 1.
    """
    written, right = attempts(model, task, arm, params, samples=samples)
    stated = np.nan_to_num(np.asarray(confidence(written.tokens)), nan=1.0)
    bins = np.round(stated * (BINS - 1))
    gaps = [np.abs(np.where(bins == b, stated - right, 0.0).mean(axis=(1, 2))) for b in range(BINS)]
    return {
        "brier": ((stated - right) ** 2).mean(axis=(1, 2)),
        "ece": np.sum(gaps, axis=0),
        "pass@1": right.mean(axis=(1, 2)),
    }
