"""Tasks with longer outputs: intermediate work, text continuation, a walk of many steps.

All map symbols to codes. The demonstrations have most codes of the first half of the symbols right
and fewer of the other half. Each instance has its own tokens and codes for the symbols.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, PAD, Problems, Splits, Task, as_problems
from jaxrl.training.tries import Chunks

SYMBOLS = 12
"""Of `phrased` and of `cut_text`."""
LENGTH = 3
"""Symbols of a prompt of `phrased` and of `cut_text`."""


@functools.cache
def phrased(*, rare: float = 0.3) -> Task:
    """Write the code of each symbol, then a phrase for each code; two phrases are right.

    The verifier accepts either. `ASK` ends the intermediate work; the answer follows.

    Args:
      rare: probability of the second phrase in a reference, `gold`; otherwise it is the first.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 3])
        coded = _codes(rng)

        def build(symbols: np.ndarray, *, imperfect: bool = False) -> Problems:
            codes, right = coded(symbols, imperfect=imperfect), coded(symbols, imperfect=False)
            said = FIRST + SYMBOLS + 2 * codes + (rng.random(symbols.shape) < rare)
            ask, end = np.full((len(symbols), 1), ASK), np.full((len(symbols), 1), EOS)
            prompt = np.concatenate([FIRST + symbols, ask], axis=1)
            gold = np.concatenate([FIRST + codes, ask, said, end], axis=1)
            return as_problems(prompt, right, gold)

        train, test, demonstrated = _three_symbols(rng)
        return Splits(build(train), build(test), build(demonstrated, imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        said = (completion[LENGTH + 1 : 2 * LENGTH + 1] - FIRST - SYMBOLS) // 2
        return jnp.all(said == answer).astype(jnp.float32)

    return Task(FIRST + 3 * SYMBOLS, make, reward)


@functools.cache
def cut_text(*, shortest: int = 1) -> Task:
    """Texts that continue with the code of each symbol; a segment is the first ones, up to all 3.

    The verifier requires the segment's exact length, which the prompt does not contain. `answer` is
    the whole text, then the length of the segment.

    Args:
      shortest: number of codes of the shortest segment.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 4])
        coded = _codes(rng)

        def build(symbols: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, codes = len(symbols), coded(symbols, imperfect=imperfect)
            cut, place = rng.integers(shortest, LENGTH + 1, size=(size, 1)), np.arange(LENGTH + 1)
            text = np.concatenate([FIRST + codes, np.full((size, 1), EOS)], axis=1)
            gold = np.where(place < cut, text, np.where(place == cut, EOS, PAD))
            prompt = np.concatenate([FIRST + symbols, np.full((size, 1), ASK)], axis=1)
            return as_problems(prompt, np.concatenate([text[:, :LENGTH], cut], axis=1), gold)

        train, test, demonstrated = _three_symbols(rng)
        return Splits(build(train), build(test), build(demonstrated, imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        same = is_prefix(answer[None, :LENGTH], completion[None], answer[LENGTH:])[0]
        return jnp.where(jnp.sum(completion > EOS) == answer[LENGTH], same, 0.0)

    return Task(FIRST + SYMBOLS, make, reward)


def is_prefix(text: jax.Array, completion: jax.Array, least: jax.Array) -> jax.Array:
    """[N] whether completions [N, T] are a prefix of texts [N, L], of `least` [N] symbols or more.

    1.0 or 0.0, as float32.
    """
    said = completion[:, : text.shape[1]]
    ended = jnp.any(completion == EOS, axis=1)
    right = jnp.all((said == text) | (said <= EOS), axis=1)
    enough = jnp.sum(completion > EOS, axis=1) >= least
    return (ended & right & enough).astype(jnp.float32)


@functools.cache
def walk(
    chunks: Chunks, *, symbols: int = 192, trained: int = 4, longest: int = 10, whole: bool = False
) -> Task:
    """From a symbol, follow its code a given number of times; write each and the steps left.

    A problem is a symbol and a number of steps. Problems are divided by a hash of the two.
    Held-out problems are longer than those of training too. Demonstrations are of all lengths, but
    of the training side alone: they start anywhere on a walk, and are no longer than a chunk or go
    to its end.

    Args:
      chunks: the length of a demonstration, and what one that starts midway sees of the past.
      symbols: their number; each starts one problem for each number of steps.
      trained: the most steps of a training problem; a test problem has more.
      longest: the most steps of a test problem.
      whole: demonstrations go to the end of the walk.
    """
    skill = np.where(np.arange(symbols) < symbols // 2, 0.9, 0.5)
    count = FIRST + symbols

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 5])
        ring, hard = rng.permutation(symbols), rng.permutation(skill)
        place = np.argsort(ring)

        def after(symbol: int, more: int) -> int:
            return int(ring[(place[symbol] + more) % symbols])

        def between(low: int, high: int) -> Callable[[int], np.ndarray]:
            spans = np.array([[0, low], [symbols, high + 1]])
            return lambda size: rng.integers(*spans, size=(size, 2))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size = len(content)
            gold = np.full((size, 2 * longest + 2), PAD)
            prompt, way = np.full((size, 5), FILLER), np.full((size, longest + 1), -1)
            for n, (symbol, steps) in enumerate(content.tolist()):
                now, written = symbol, []
                for left in range(steps)[::-1]:
                    known = not imperfect or rng.random() < hard[now]
                    now = after(now, 1 if known else 2)
                    written += [FIRST + now, count + left]
                asked = [FIRST + symbol, count + steps, ASK]
                way[n, :steps] = [after(symbol, k + 1) for k in range(steps)]
                way[n, longest] = steps
                if imperfect:  # a random start
                    start = 2 * rng.integers(steps) * rng.integers(2)
                    asked += written[max(start - chunks.carry, 0) : start]
                    room = None if whole else chunks.size - min(start, chunks.carry)
                    written = [*written[start:], EOS][:room]
                else:
                    written.append(EOS)
                prompt[n, 5 - len(asked) :] = asked
                gold[n, : len(written)] = written
            return as_problems(prompt, way, gold)

        short, long = between(1, trained), between(trained + 1, longest)
        return Splits(
            build(split.distinct(short, 256, held_out=False, name="a walk")),
            build(split.distinct(long, HELD_OUT, held_out=True, name="a walk")),
            build(split.repeated(between(1, longest), 4096), imperfect=True),
        )

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        way, steps = answer[:longest], answer[longest]
        place = jnp.arange(len(completion))
        step = place // 2 + 1
        now = way[jnp.minimum(place // 2, longest - 1)]
        said = jnp.where(place % 2 == 0, FIRST + now, count + steps - step)
        wanted = jnp.where(step <= steps, said, jnp.where(place == 2 * steps, EOS, PAD))
        return jnp.all(completion == wanted).astype(jnp.float32)

    return Task(count + longest + 1, make, reward)


def _codes(rng: np.random.Generator) -> Callable[..., np.ndarray]:
    """(symbols, imperfect=) -> codes of one instance: right, or with a demonstration's errors."""
    ring, skill = rng.permutation(SYMBOLS), rng.permutation(np.repeat([0.8, 0.3], SYMBOLS // 2))
    place = np.argsort(ring)

    def coded(symbols: np.ndarray, *, imperfect: bool) -> np.ndarray:
        known = rng.random(symbols.shape) < (skill[symbols] if imperfect else 1.0)
        return ring[(place[symbols] + np.where(known, 1, 2)) % SYMBOLS]

    return coded


def _three_symbols(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Symbols [size, LENGTH] of problems to train on, held-out ones and demonstrations."""

    def draw(size: int) -> np.ndarray:
        return rng.integers(SYMBOLS, size=(size, LENGTH))

    train, test = (split.distinct(draw, n, held_out=h) for n, h in ((256, False), (HELD_OUT, True)))
    return train, test, split.repeated(draw, 4096)
