"""Answers with a stated confidence: the task, how a statement is read, and what it is worth."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.launch.lab.arms import Arm
from jaxrl.launch.lab.effect import attempts
from jaxrl.launch.lab.tasks import ASK, EOS, FIRST, Problems, Task, posed
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, BINS = 8, 11
KNOWN = np.linspace(0.15, 0.95, SYMBOLS)
"""How often the usual answer to each symbol is the right one: the most that can be known."""


def hazy() -> Task:
    """One symbol and an answer that only chance decides: say which, and how sure you are."""
    rng = np.random.default_rng(0)

    def make(size: int, *, pupil: bool) -> Problems:
        symbols = rng.integers(SYMBOLS, size=size)
        usual = rng.random(size) < (0.7 if pupil else KNOWN[symbols])
        other = (symbols + rng.integers(2, SYMBOLS, size=size)) % SYMBOLS
        answer = FIRST + np.where(usual, (symbols + 1) % SYMBOLS, other)
        sure = rng.integers(BINS, size=size)
        gold = np.stack([answer, FIRST + SYMBOLS + sure, np.full(size, EOS)], axis=1)
        return posed(np.stack([FIRST + symbols, np.full(size, ASK)], axis=1), answer[:, None], gold)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return (completion[0] == answer[0]).astype(jnp.float32)

    return Task(
        vocabulary=FIRST + SYMBOLS + BINS,
        train=make(256, pupil=False),
        test=make(256, pupil=False),
        reward=reward,
        pupil=make(4096, pupil=True),
    )


def confidence(tokens: jax.Array) -> jax.Array:
    """Stated in completions [..., T]: in [0, 1], or nan where nothing is."""
    stated = tokens[..., 1] - FIRST - SYMBOLS
    return jnp.where((stated >= 0) & (tokens[..., 2] == EOS), stated / (BINS - 1), jnp.nan)


def calibration(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params
) -> dict[str, np.ndarray]:
    """`brier`; `ece`, the expected calibration error over stated values; `accuracy`. Each [S].

    What states no confidence counts as stating 1.
    """
    written, right = attempts(model, task, arm, params)
    stated = np.nan_to_num(np.asarray(confidence(written.tokens)), nan=1.0)
    bins = np.round(stated * (BINS - 1))
    gaps = [np.abs(np.where(bins == b, stated - right, 0.0).mean(axis=(1, 2))) for b in range(BINS)]
    return {
        "brier": ((stated - right) ** 2).mean(axis=(1, 2)),
        "ece": np.sum(gaps, axis=0),
        "accuracy": right.mean(axis=(1, 2)),
    }
