"""Tasks that take more than an answer: work before it, a text without an end, a walk of many steps.

All are about symbols and the code of each, which the pupil knows well of the first half and less of
the other. Which token is which symbol, and its code, are the instance's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.launch.lab import split
from jaxrl.launch.lab.split import HELD_OUT
from jaxrl.launch.lab.tasks import ASK, EOS, FILLER, FIRST, PAD, Problems, Splits, Task, posed
from jaxrl.sampling.chunks import Chunks

SYMBOLS = 12
"""Of `phrased` and of `cut_text`."""
LENGTH = 3
"""Symbols of a prompt of `phrased` and of `cut_text`."""


@functools.cache
def phrased() -> Task:
    """Work out the code of each symbol, then say the codes, each in one of two ways.

    The reference, `gold`, takes the common way 7 times in 10; the verifier takes either. `ASK`
    closes the work, and the answer begins behind it.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 3])
        coded = _codes(rng)

        def pose(symbols: np.ndarray, *, pupil: bool = False) -> Problems:
            codes, right = coded(symbols, pupil=pupil), coded(symbols, pupil=False)
            said = FIRST + SYMBOLS + 2 * codes + (rng.random(symbols.shape) < 0.3)
            ask, end = np.full((len(symbols), 1), ASK), np.full((len(symbols), 1), EOS)
            prompt = np.concatenate([FIRST + symbols, ask], axis=1)
            gold = np.concatenate([FIRST + codes, ask, said, end], axis=1)
            return posed(prompt, right, gold)

        train, test, pupil = _three_symbols(rng)
        return Splits(pose(train), pose(test), pose(pupil, pupil=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        said = (completion[LENGTH + 1 : 2 * LENGTH + 1] - FIRST - SYMBOLS) // 2
        return jnp.all(said == answer).astype(jnp.float32)

    return Task(FIRST + 3 * SYMBOLS, make, reward)


@functools.cache
def cut_text() -> Task:
    """Texts that go on by the code of each symbol; a segment is the first 1, 2 or 3 of them.

    The verifier wants the segment as it was cut, which nothing in the prompt tells. `answer` is the
    whole text, then the length of the segment.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 4])
        coded = _codes(rng)

        def pose(symbols: np.ndarray, *, pupil: bool = False) -> Problems:
            size, codes = len(symbols), coded(symbols, pupil=pupil)
            cut, place = rng.integers(1, LENGTH + 1, size=(size, 1)), np.arange(LENGTH + 1)
            text = np.concatenate([FIRST + codes, np.full((size, 1), EOS)], axis=1)
            gold = np.where(place < cut, text, np.where(place == cut, EOS, PAD))
            prompt = np.concatenate([FIRST + symbols, np.full((size, 1), ASK)], axis=1)
            return posed(prompt, np.concatenate([text[:, :LENGTH], cut], axis=1), gold)

        train, test, pupil = _three_symbols(rng)
        return Splits(pose(train), pose(test), pose(pupil, pupil=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        same = begun(answer[None, :LENGTH], completion[None], answer[LENGTH:])[0]
        return jnp.where(jnp.sum(completion > EOS) == answer[LENGTH], same, 0.0)

    return Task(FIRST + SYMBOLS, make, reward)


def begun(text: jax.Array, completion: jax.Array, least: jax.Array) -> jax.Array:
    """[N] whether completions [N, T] are the first symbols of texts [N, L], `least` [N] or more."""
    said = completion[:, : text.shape[1]]
    ended = jnp.any(completion == EOS, axis=1)
    right = jnp.all((said == text) | (said <= EOS), axis=1)
    enough = jnp.sum(completion > EOS, axis=1) >= least
    return (ended & right & enough).astype(jnp.float32)


@functools.cache
def walk(chunks: Chunks, *, symbols: int = 128, trained: int = 4, longest: int = 8) -> Task:
    """From a symbol, go on by its code so many times, saying each and how many are left.

    The pupil knows the way from anywhere, but never saw more of it at once than a chunk holds. A
    problem is a symbol and a number of steps; the held-out ones take longer than any that is
    trained on, so the splits differ by their lengths.

    Args:
      chunks: what the pupil saw at once.
      symbols: that there are; from each, one problem of each number of steps.
      trained: steps of a training problem, at most; a test problem has more,
      longest: up to this.
    """
    skill = np.where(np.arange(symbols) < symbols // 2, 0.9, 0.5)
    count = FIRST + symbols

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 5])
        ring, hard = rng.permutation(symbols), rng.permutation(skill)
        place = np.argsort(ring)

        def after(symbol: int, more: int) -> int:
            return int(ring[(place[symbol] + more) % symbols])

        def pose(size: int, low: int, high: int, *, pupil: bool) -> Problems:
            gold = np.full((size, 2 * longest + 2), PAD)
            prompt, way = np.full((size, 5), FILLER), np.full((size, longest + 1), -1)
            if pupil:
                symbol = rng.integers(symbols, size=size)
                steps = rng.integers(low, high + 1, size=size)
            else:
                some = rng.permutation(symbols * (high + 1 - low))[:size]
                symbol, steps = some % symbols, low + some // symbols
            for n in range(size):
                now, written = int(symbol[n]), []
                for left in range(steps[n])[::-1]:
                    known = not pupil or rng.random() < hard[now]
                    now = after(now, 1 if known else 2)
                    written += [FIRST + now, count + left]
                asked = [FIRST + symbol[n], count + steps[n], ASK]
                way[n, : steps[n]] = [after(symbol[n], k + 1) for k in range(steps[n])]
                way[n, longest] = steps[n]
                if pupil:  # from somewhere on, as much as a chunk holds
                    start = 2 * rng.integers(steps[n]) * rng.integers(2)
                    asked += written[max(start - chunks.carry, 0) : start]
                    written = [*written[start:], EOS][: chunks.size - min(start, chunks.carry)]
                else:
                    written.append(EOS)
                prompt[n, 5 - len(asked) :] = asked
                gold[n, : len(written)] = written
            return posed(prompt, way, gold)

        return Splits(
            pose(256, 1, trained, pupil=False),
            pose(HELD_OUT, trained + 1, longest, pupil=False),
            pose(4096, 1, longest, pupil=True),
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
    """(symbols, pupil=) -> codes of one instance, as they are or as the pupil knows them."""
    ring, skill = rng.permutation(SYMBOLS), rng.permutation(np.repeat([0.8, 0.3], SYMBOLS // 2))
    place = np.argsort(ring)

    def coded(symbols: np.ndarray, *, pupil: bool) -> np.ndarray:
        known = rng.random(symbols.shape) < (skill[symbols] if pupil else 1.0)
        return ring[(place[symbols] + np.where(known, 1, 2)) % SYMBOLS]

    return coded


def _three_symbols(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Symbols [size, LENGTH] of problems to train on, held-out ones and demonstrations."""

    def draw(size: int) -> np.ndarray:
        return rng.integers(SYMBOLS, size=(size, LENGTH))

    train, test = (split.distinct(draw, n, held_out=h) for n, h in ((256, False), (HELD_OUT, True)))
    return train, test, split.repeated(draw, 4096)
