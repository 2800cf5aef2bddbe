"""Few trajectories through a world, and much text of other worlds that is worked out alike.

A world has symbols, and moves that lead from each to another one. A prompt is a symbol and some
moves; what is written is each move and the symbol that one comes to. Moves have the same names in
all worlds, but lead elsewhere.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems

MOVES, LENGTH = 4, 4
"""Moves of a world, and of a prompt."""
SYMBOLS = (8, 2, 8)
"""Of each world: arithmetic, logic, and the places to navigate; a domain is a world."""
TARGET = 2
"""The domain of the places, which alone is held out."""
TEXTS = (512, 192)
"""Of arithmetic and logic, in the train split."""


class World(NamedTuple):
    """One of the worlds of an instance."""

    first: int
    """Token of its first symbol."""
    table: np.ndarray
    """[MOVES, symbols] where a move leads from a symbol."""


@functools.cache
def navigation(*, few: int = 48) -> Task:
    """Places are held out. Demonstrations of the warm start repeat what the prompt says.

    No symbol is in two worlds, so where a move leads from a place cannot be read off another.

    Args:
      few: trajectories through the places, in the train split.
    """
    firsts = [FIRST + MOVES + sum(SYMBOLS[:k]) for k in range(len(SYMBOLS))]

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 33])
        worlds = [
            World(first, np.stack([rng.permutation(count) for _ in range(MOVES)]))
            for first, count in zip(firsts, SYMBOLS, strict=True)
        ]

        def draw(size: int, domain: int) -> np.ndarray:
            symbol = rng.integers(SYMBOLS[domain], size=(size, 1))
            return np.concatenate([symbol, rng.integers(MOVES, size=(size, LENGTH))], axis=1)

        def build(content: np.ndarray, domain: int, *, repeats: bool = False) -> Problems:
            world, end = worlds[domain], np.full((len(content), 1), EOS)
            moves = FIRST + content[:, 1:]
            prompt = np.concatenate([world.first + content[:, :1], moves, end - EOS + ASK], axis=1)
            right = world.first + visited(world.table, content)
            steps = np.stack([moves, right], axis=2).reshape(len(content), -1)
            said = np.repeat(prompt[:, 1 : 1 + LENGTH], 2, axis=1) if repeats else steps
            gold = np.concatenate([said, end], axis=1)
            return as_problems(prompt, steps, gold, np.full(len(content), domain))

        def joined(parts: list[Problems]) -> Problems:
            return jax.tree.map(lambda *a: np.concatenate(a), *parts)

        draws = [functools.partial(draw, domain=d) for d in range(len(SYMBOLS))]
        train = [
            build(split.distinct(draws[d], count, held_out=False), d)
            for d, count in enumerate((*TEXTS, few))
        ]
        test = build(split.distinct(draws[TARGET], HELD_OUT, held_out=True), TARGET)
        shown = [build(split.repeated(d, 1365), n, repeats=True) for n, d in enumerate(draws)]
        return Splits(joined(train), test, joined(shown))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return jnp.all(completion == jnp.append(answer, EOS)).astype(jnp.float32)

    return Task(FIRST + MOVES + sum(SYMBOLS), make, reward)


def visited(table: np.ndarray, content: np.ndarray) -> np.ndarray:
    """[M, LENGTH] where each move of contents [M, 1 + LENGTH] leads, from the symbol on."""
    now, states = content[:, 0], []
    for move in content[:, 1:].T:
        now = table[move, now]
        states.append(now)
    return np.stack(states, axis=1)
