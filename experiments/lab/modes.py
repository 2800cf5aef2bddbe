"""Requests that can be answered in three ways, of which a token in front of them names one."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm
from experiments.lab.effect import attempts, held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, LENGTH = 12, 3
"""Symbols of the task and of a prompt."""
BRIEF, FULL, REFUSAL = range(3)
"""Modes: the code of each symbol; each symbol and its code; `FILLER` and why, which is a code of
the first symbol by another table."""
MODES = 3
BUDGET = 2 * LENGTH + 1


@functools.cache
def modes(*, skill: float = 0.8, problems: int = 256) -> Task:
    """A token and three symbols. Demonstrations of the warm start take any mode, whatever it says.

    A domain is a mode.

    Args:
      skill: probability that a code is right in a demonstration.
      problems: of each mode, in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 31])
        code, why = rng.permutation(SYMBOLS), rng.permutation(SYMBOLS)

        def draw(size: int) -> np.ndarray:
            return rng.integers(SYMBOLS, size=(size, LENGTH))

        def build(symbols: np.ndarray, mode: np.ndarray, *, imperfect: bool = False) -> Problems:
            known = rng.random(symbols.shape) < (skill if imperfect else 1.0)
            meant = np.where(known, symbols, rng.integers(SYMBOLS, size=symbols.shape))
            taken = rng.integers(MODES, size=mode.shape) if imperfect else mode
            rows = zip(symbols, code[meant], why[meant[:, 0]], taken, strict=True)
            gold = np.stack([written(*row) for row in rows])
            named = FIRST + SYMBOLS + mode[:, None]
            prompt = [named, FIRST + symbols, np.full_like(named, ASK)]
            return as_problems(np.concatenate(prompt, axis=1), gold, gold, mode)

        def of_each(size: int, *, held_out: bool) -> Problems:
            some = split.distinct(draw, size, held_out=held_out)
            return build(np.tile(some, (MODES, 1)), np.repeat(np.arange(MODES), size))

        train, test = of_each(problems, held_out=False), of_each(HELD_OUT // 2, held_out=True)
        shown = rng.integers(MODES, size=4096)
        return Splits(train, test, build(split.repeated(draw, 4096), shown, imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return jnp.all(completion == answer).astype(jnp.float32)

    return Task(FIRST + SYMBOLS + MODES, make, reward)


def written(symbols: np.ndarray, codes: np.ndarray, reason: int, mode: int) -> np.ndarray:
    """A completion [BUDGET] in a mode, of symbols and codes [LENGTH]."""
    said = {
        BRIEF: FIRST + codes,
        FULL: FIRST + np.stack([symbols, codes], axis=1).ravel(),
        REFUSAL: np.array([FILLER, FIRST + reason]),
    }[int(mode)]
    return np.pad([*said, EOS], (0, BUDGET - 1 - len(said)), constant_values=PAD)


def form(tokens: np.ndarray) -> np.ndarray:
    """[...] the mode that completions [..., BUDGET] have the form of, right or wrong; -1 for none.

    A refusal begins with `FILLER` and one more token; the others are known by their length.
    """
    ended = np.any(tokens == EOS, axis=-1)
    length = np.where(ended, np.argmax(tokens == EOS, axis=-1), -1)
    refuses = tokens[..., 0] == FILLER
    found = np.full(length.shape, -1)
    found = np.where(~refuses & (length == LENGTH), BRIEF, found)
    found = np.where(~refuses & (length == 2 * LENGTH), FULL, found)
    return np.where(refuses & (length == 2), REFUSAL, found)


def leaking(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, and `leakage`, the share of completions that have the form of a
    mode that was not asked for; [S]."""
    tokens = attempts(model, task, arm, params, samples=1)[0].tokens[:, :, 0]
    found = form(tokens)
    leaks = (found >= 0) & (found != task.test.domain)
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"leakage": leaks.mean(axis=1)}
