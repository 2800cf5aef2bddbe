"""Answers of a hidden quality, principles to judge them by, and a reward model from pairs."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Sampled
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems
from jaxrl.data.rewards.judged.principles import reflected

SYMBOLS, LENGTH, STYLES = 16, 3, 4
"""Symbols of the task and of a prompt, and styles, in each of which a symbol has a code."""
PRINCIPLES = STYLES + 3
"""Share of right symbols; in each style; all in one style; the first in the first style."""
RIGHT = 1.0
"""What a right symbol adds to the quality, whatever its style."""
LIKED = (0.8, 0.2, -0.3, -0.7)
"""What its style adds, in an order of the instance's own. The last two principles count nothing."""
UNIT = 100
"""Of qualities and scores in a problem's answer."""


def marks(styles: np.ndarray | jax.Array) -> jax.Array:
    """[..., PRINCIPLES] from 0 to 1, of answers by the style of each symbol; -1: no right code."""
    styles = jnp.asarray(styles)
    right = styles >= 0
    each = [jnp.mean(right, axis=-1)]
    each += [jnp.mean(styles == k, axis=-1) for k in range(STYLES)]
    each += [jnp.all(right & (styles == styles[..., :1]), axis=-1), styles[..., 0] == 0]
    return jnp.stack([jnp.asarray(e, jnp.float32) for e in each], axis=-1)


_ALL = np.array([*itertools.product(range(-1, STYLES), repeat=LENGTH)])
"""Every way to answer, by the style of each symbol."""


@functools.cache
def greetings(
    *, skill: float = 0.7, sure: float = 6.0, pairs: int = 200, problems: int = 256
) -> Task:
    """Write the code of each symbol in one of its styles; which are liked is not said.

    The quality is from 0, the worst answer, to 1, the best one, and is the task's own reward. A
    judge and a reward model learn from the same comparisons. `answer` is the right codes of each
    style and then, in units of 1 / `UNIT`, the weights of the principles in the quality and in the
    judge, and the model's score of each code at each place.

    Args:
      skill: probability of a right code in a demonstration, whose styles are random.
      sure: of two answers the better one wins with the probability sigmoid(sure * difference).
      pairs: comparisons, of answers as in demonstrations.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 27])
        code = rng.permutation(SYMBOLS * STYLES).reshape(STYLES, SYMBOLS)
        truth = np.array([RIGHT, *rng.permutation(LIKED), 0, 0])

        def draw(size: int) -> np.ndarray:
            return rng.integers(SYMBOLS, size=(size, LENGTH))

        def answered(content: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            style = rng.integers(STYLES, size=content.shape)
            right = rng.random(content.shape) < skill
            return code[style, (content + ~right) % SYMBOLS], np.where(right, style, -1)

        shown = split.repeated(draw, pairs)
        (one, first), (two, second) = answered(shown), answered(shown)
        of = [np.asarray(marks(styles), np.float64) for styles in (first, second)]
        gap = (of[0] - of[1]) @ truth / np.ptp(np.asarray(marks(_ALL)) @ truth)
        won = (rng.random(pairs) < 1 / (1 + np.exp(-sure * gap)))[:, None]
        judge = reflected(
            np.where(won, of[0], of[1]), np.where(won, of[1], of[0]), np.ones(PRINCIPLES)
        )
        scores = fitted(shown, np.where(won, one, two), np.where(won, two, one))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size = len(content)
            said = code[int(np.argmax(truth[1 : STYLES + 1])), content]
            said = answered(content)[0] if imperfect else said
            gold = np.concatenate([FIRST + said, np.full((size, 1), EOS)], axis=1)
            symbols = FIRST + SYMBOLS * STYLES + content
            prompt = np.concatenate([symbols, np.full((size, 1), ASK)], axis=1)
            right = FIRST + code[:, content].transpose(1, 0, 2).reshape(size, -1)
            weights = np.tile(np.round(UNIT * np.concatenate([truth, judge])), (size, 1))
            table = np.round(UNIT * scores[content]).reshape(size, -1)
            return as_problems(prompt, np.concatenate([right, weights, table], axis=1), gold)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        truth = _parts(answer[None])[1][0]
        every = marks(_ALL) @ truth
        value = marks(_styles(completion[None], answer[None]))[0] @ truth
        share = (value - jnp.min(every)) / jnp.ptp(every)
        share = jnp.where(share > 1 - 1e-4, 1.0, share)
        return jnp.where(completion[LENGTH] == EOS, share, 0.0).astype(jnp.float32)

    return Task(FIRST + SYMBOLS * STYLES + SYMBOLS, make, reward)


def fitted(
    content: np.ndarray, better: np.ndarray, worse: np.ndarray, *, steps: int = 200
) -> np.ndarray:
    """A reward model: scores [SYMBOLS, SYMBOLS * STYLES] of codes for symbols, by Bradley-Terry.

    Formula: gradient descent on `mean(-log sigmoid(r_w - r_l)) + 0.01 |score|^2 / N`

    Args:
      content: [N, LENGTH] symbols.
      better: [N, LENGTH] codes of the answers that won.
      worse: [N, LENGTH] codes of the others.
      steps: of gradient descent.
    """
    scores = np.zeros((SYMBOLS, SYMBOLS * STYLES))
    for _ in range(steps):
        gap = (scores[content, better] - scores[content, worse]).sum(axis=1)
        error = np.repeat(1 / (1 + np.exp(gap))[:, None], LENGTH, axis=1)
        scores *= 1 - 0.2 * 0.02
        np.add.at(scores, (content, better), 0.2 * error)
        np.add.at(scores, (content, worse), -0.2 * error)
    return scores


def by_principles(batch: Sampled) -> jax.Array:
    """[N] the judge's weighted sum of marks; that of no right symbol where no end follows."""
    judge = _parts(batch.problems.answer)[2]
    given = marks(_styles(batch.tokens, batch.problems.answer))
    ended = (batch.tokens[:, LENGTH] == EOS)[:, None]
    return jnp.sum(jnp.where(ended, given, 0.0) * judge, axis=1)


def by_pairs(batch: Sampled) -> jax.Array:
    """[N] the reward model's scores; -1 for each symbol where no end follows or that is no code."""
    table = _parts(batch.problems.answer)[3].reshape(-1, LENGTH, SYMBOLS * STYLES)
    said = batch.tokens[:, :LENGTH] - FIRST
    known = (said >= 0) & (said < SYMBOLS * STYLES) & (batch.tokens[:, LENGTH] == EOS)[:, None]
    at = jnp.clip(said, 0, SYMBOLS * STYLES - 1)[..., None]
    each = jnp.take_along_axis(table, at, axis=2)[..., 0]
    return jnp.sum(jnp.where(known, each, -1.0), axis=1)


def _parts(answers: jax.Array) -> tuple[jax.Array, ...]:
    """Right codes [N, STYLES, LENGTH], and [N, ...] weights of quality and judge, and scores."""
    ends = np.cumsum([STYLES * LENGTH, PRINCIPLES, PRINCIPLES])
    right, truth, judge, table = jnp.split(jnp.asarray(answers), ends, axis=1)
    return right.reshape(-1, STYLES, LENGTH), truth / UNIT, judge / UNIT, table / UNIT


def _styles(tokens: jax.Array, answers: jax.Array) -> jax.Array:
    """[N, LENGTH] style of each symbol of completions [N, T]; -1 where no style's code is said."""
    fits = tokens[:, None, :LENGTH] == _parts(answers)[0]
    return jnp.where(jnp.any(fits, axis=1), jnp.argmax(fits, axis=1), -1)
