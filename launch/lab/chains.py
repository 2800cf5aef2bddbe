"""Tasks that take more than an answer: work before it, a text without an end, a walk of many steps.

All are about `SYMBOLS` symbols and the code of each, which the pupil knows well of the first half
and less of the other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.launch.lab.tasks import ASK, EOS, FILLER, FIRST, PAD, Problems, Task, posed
from jaxrl.sampling.chunks import Chunks

SYMBOLS = 8
LENGTH = 3
"""Symbols of a prompt of `phrased` and of `cut_text`."""


def phrased() -> Task:
    """Work out the code of each symbol, then say the codes, each in one of two ways.

    The reference, `gold`, takes the common way 7 times in 10; the verifier takes either. `ASK`
    closes the work, and the answer begins behind it.
    """
    rng = np.random.default_rng(0)

    def make(size: int, *, pupil: bool) -> Problems:
        symbols, codes = _coded(rng, size, pupil=pupil)
        said = FIRST + SYMBOLS + 2 * codes + (rng.random(symbols.shape) < 0.3)
        ask, end = np.full((size, 1), ASK), np.full((size, 1), EOS)
        prompt = np.concatenate([FIRST + symbols, ask], axis=1)
        return posed(prompt, symbols, np.concatenate([FIRST + codes, ask, said, end], axis=1))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        said = (completion[LENGTH + 1 : 2 * LENGTH + 1] - FIRST - SYMBOLS) // 2
        return jnp.all(said == (answer + 1) % SYMBOLS).astype(jnp.float32)

    return Task(
        vocabulary=FIRST + 3 * SYMBOLS,
        train=make(256, pupil=False),
        test=make(64, pupil=False),
        reward=reward,
        pupil=make(4096, pupil=True),
    )


def cut_text() -> Task:
    """Texts that go on by the code of each symbol; a segment is the first 1, 2 or 3 of them.

    The verifier wants the segment as it was cut, which nothing in the prompt tells. `answer` is the
    whole text, then the length of the segment.
    """
    rng = np.random.default_rng(0)

    def make(size: int, *, pupil: bool) -> Problems:
        symbols, codes = _coded(rng, size, pupil=pupil)
        cut, place = rng.integers(1, LENGTH + 1, size=(size, 1)), np.arange(LENGTH + 1)
        text = np.concatenate([FIRST + codes, np.full((size, 1), EOS)], axis=1)
        gold = np.where(place < cut, text, np.where(place == cut, EOS, PAD))
        prompt = np.concatenate([FIRST + symbols, np.full((size, 1), ASK)], axis=1)
        return posed(prompt, np.concatenate([text[:, :LENGTH], cut], axis=1), gold)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        same = begun(answer[None, :LENGTH], completion[None], answer[LENGTH:])[0]
        return jnp.where(jnp.sum(completion > EOS) == answer[LENGTH], same, 0.0)

    return Task(
        vocabulary=FIRST + SYMBOLS,
        train=make(256, pupil=False),
        test=make(64, pupil=False),
        reward=reward,
        pupil=make(4096, pupil=True),
    )


def begun(text: jax.Array, completion: jax.Array, least: jax.Array) -> jax.Array:
    """[N] whether completions [N, T] are the first symbols of texts [N, L], `least` [N] or more."""
    said = completion[:, : text.shape[1]]
    ended = jnp.any(completion == EOS, axis=1)
    right = jnp.all((said == text) | (said <= EOS), axis=1)
    enough = jnp.sum(completion > EOS, axis=1) >= least
    return (ended & right & enough).astype(jnp.float32)


def walk(chunks: Chunks, *, trained: int = 4, longest: int = 8) -> Task:
    """From a symbol, go on by its code so many times, saying each and how many are left.

    The pupil knows the way from anywhere, but never saw more of it at once than a chunk holds.

    Args:
      chunks: what the pupil saw at once.
      trained: steps of a training problem, at most; a test problem has more,
      longest: up to this.
    """
    rng = np.random.default_rng(0)
    skill = np.where(np.arange(SYMBOLS) < SYMBOLS // 2, 0.9, 0.5)
    count = FIRST + SYMBOLS

    def make(size: int, low: int, high: int, *, pupil: bool) -> Problems:
        gold = np.full((size, 2 * longest + 2), PAD)
        prompt = np.full((size, 5), FILLER)
        symbol, steps = rng.integers(SYMBOLS, size=size), rng.integers(low, high + 1, size=size)
        for n in range(size):
            now, written = symbol[n], []
            for left in range(steps[n])[::-1]:
                known = not pupil or rng.random() < skill[now]
                now = (now + (1 if known else 2)) % SYMBOLS
                written += [FIRST + now, count + left]
            asked = [FIRST + symbol[n], count + steps[n], ASK]
            if pupil:  # from somewhere on, as much as a chunk holds
                start = 2 * rng.integers(steps[n]) * rng.integers(2)
                asked += written[max(start - chunks.carry, 0) : start]
                written = [*written[start:], EOS][: chunks.size - min(start, chunks.carry)]
            else:
                written.append(EOS)
            prompt[n, 5 - len(asked) :] = asked
            gold[n, : len(written)] = written
        return posed(prompt, np.stack([symbol, steps], axis=1), gold)

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        symbol, steps = answer
        place = jnp.arange(len(completion))
        step = place // 2 + 1
        said = jnp.where(place % 2 == 0, FIRST + (symbol + step) % SYMBOLS, count + steps - step)
        wanted = jnp.where(step <= steps, said, jnp.where(place == 2 * steps, EOS, PAD))
        return jnp.all(completion == wanted).astype(jnp.float32)

    return Task(
        vocabulary=count + longest + 1,
        train=make(256, 1, trained, pupil=False),
        test=make(64, trained + 1, longest, pupil=False),
        reward=reward,
        pupil=make(4096, 1, longest, pupil=True),
    )


def _coded(rng: np.random.Generator, size: int, *, pupil: bool) -> tuple[np.ndarray, np.ndarray]:
    """Symbols and their codes, [size, LENGTH], as the pupil knows them or as they are."""
    symbols = rng.integers(SYMBOLS, size=(size, LENGTH))
    skill = np.where(symbols < SYMBOLS // 2, 0.8, 0.3) if pupil else 1.0
    known = rng.random(symbols.shape) < skill
    return symbols, (symbols + np.where(known, 1, 2)) % SYMBOLS
