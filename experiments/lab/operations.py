"""Operations applied to a symbol one after the other, in the formats that a corpus may show.

A prompt is a symbol and some operations. The answer is the last symbol before the end, whatever was
written before it. So a policy may answer at once, or write what is left after each operation.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD, Problems, Splits, Task, as_problems

SYMBOLS, OPERATIONS, LENGTH = 8, 4, 4
"""Symbols, operations on them, and operations of a prompt where no other number is asked for."""
EQUATIONS, DIRECT, SHORT, LONG, TARGET = range(5)
"""Domains: one operation and its result; the answer alone; each result; each result twice; and
prompts to do RL on, whose solutions are answers alone."""
SHOWN = (0.3, 0.3, 0.2, 0.2)
"""Shares of the first four among the demonstrations of the warm start."""


@functools.cache
def formats(*, skill: float = 0.9, length: int = LENGTH, problems: int = 256) -> Task:
    """Prompts of `length` operations are held out. Each instance has its own operations.

    Args:
      skill: chance that a demonstration applies an operation rightly, else at random.
      length: operations of a prompt.
      problems: of each domain but `EQUATIONS`, whose problems are all pairs, in the train split.
    """
    budget = 2 * length + 1

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 13])
        result = np.stack([rng.permutation(SYMBOLS) for _ in range(OPERATIONS)])

        def draw(size: int) -> np.ndarray:
            operations = rng.integers(OPERATIONS, size=(size, length))
            return np.concatenate([rng.integers(SYMBOLS, size=(size, 1)), operations], axis=1)

        def build(content: np.ndarray, domain: np.ndarray, chance: float = 1.0) -> Problems:
            symbol, operations = content[:, 0], content[:, 1:]
            ends, states = [], []
            for k in range(length):
                known = rng.random(len(content)) < chance
                other = rng.integers(SYMBOLS, size=len(content))
                symbol = np.where(known, result[operations[:, k], symbol], other)
                states.append(symbol)
            gold = np.full((len(content), budget), PAD)
            for row, d, own in zip(gold, domain, np.stack(states, axis=1), strict=True):
                said = written(d, own)
                row[: len(said) + 1] = [*(FIRST + said), EOS]
                ends.append(said[-1])
            named = FIRST + SYMBOLS + operations
            named[:, 1:][domain == EQUATIONS] = FILLER
            asked = [FIRST + content[:, :1], named, np.full((len(content), 1), ASK)]
            return as_problems(np.concatenate(asked, axis=1), np.array(ends)[:, None], gold, domain)

        pairs = np.stack(np.meshgrid(np.arange(SYMBOLS), np.arange(OPERATIONS)), axis=-1)
        alone = np.pad(pairs.reshape(-1, 2), ((0, 0), (0, length - 1)))
        asked = [split.distinct(draw, problems, held_out=False) for _ in range(DIRECT, TARGET + 1)]
        kinds = np.repeat(np.arange(TARGET + 1), [len(alone), *[problems] * TARGET])
        train = build(np.concatenate([alone, *asked]), kinds)
        test = build(split.distinct(draw, HELD_OUT, held_out=True), np.full(HELD_OUT, TARGET))
        shown = rng.choice(len(SHOWN), 4096, p=SHOWN)
        return Splits(train, test, build(split.repeated(draw, 4096), shown, skill))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        end = jnp.argmax(completion == EOS)
        right = completion[jnp.maximum(end - 1, 0)] == FIRST + answer[0]
        return (right & (end > 0)).astype(jnp.float32)

    return Task(FIRST + SYMBOLS + OPERATIONS, make, reward)


def written(domain: int, states: np.ndarray) -> np.ndarray:
    """What a domain's solution says of the symbols [length] after each operation."""
    told = {EQUATIONS: states[:1], SHORT: states, LONG: np.repeat(states, 2)}
    return told.get(int(domain), states[-1:])
