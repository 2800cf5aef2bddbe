"""Answers with a stated confidence: the task, how a statement is read, and what it is worth."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.launch.lab import split
from jaxrl.launch.lab.arms import Arm
from jaxrl.launch.lab.effect import attempts
from jaxrl.launch.lab.split import HELD_OUT
from jaxrl.launch.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, posed
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, SOURCES, BINS = 12, 8, 11
KNOWN = np.linspace(0.15, 0.95, SOURCES)
"""How often the usual answer of each source is the right one: the most that can be known."""


@functools.cache
def hazy() -> Task:
    """A source and two symbols, and an answer that only chance decides: say it, and how sure.

    The usual answer is the code of each symbol. The source tells how often that is right; where it
    is not, the first code is another one.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 6])
        codes, known = rng.permutation(SYMBOLS), rng.permutation(KNOWN)

        def draw(size: int) -> np.ndarray:
            source, pair = rng.integers(SOURCES, size=size), rng.integers(SYMBOLS, size=(size, 2))
            return np.concatenate([source[:, None], pair], axis=1)

        def pose(content: np.ndarray, *, pupil: bool = False) -> Problems:
            size, source, pair = len(content), content[:, 0], content[:, 1:]
            usual = rng.random(size) < (0.7 if pupil else known[source])
            other = rng.integers(1, SYMBOLS, size=size)
            said = codes[pair]
            said[:, 0] = np.where(usual, said[:, 0], (said[:, 0] + other) % SYMBOLS)
            sure = FIRST + SYMBOLS + SOURCES + rng.integers(BINS, size=size)
            told = [FIRST + said, sure[:, None], np.full((size, 1), EOS)]
            asked = [FIRST + SYMBOLS + source[:, None], FIRST + pair, np.full((size, 1), ASK)]
            return posed(np.concatenate(asked, axis=1), FIRST + said, np.concatenate(told, axis=1))

        train = pose(split.distinct(draw, 256, held_out=False))
        test = pose(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, pose(split.repeated(draw, 4096), pupil=True))

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
