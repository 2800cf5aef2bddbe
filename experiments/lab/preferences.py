"""Answers that were compared, and two reward models of them: one of scores, and one of pairs."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Sampled
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems
from jaxrl.data.rewards import group

SYMBOLS, LENGTH = 12, 3
"""Symbols, each with a code among as many, and how many a prompt has."""
UNIT = 100
"""Of the models' scores in a problem's answer."""
MISSING = -2.0
"""The scalar model's score of each symbol of an answer that is out of form."""


class Models(NamedTuple):
    """What both reward models have learned of S symbols, C codes and P prompts."""

    scores: np.ndarray
    """[S, C] of the scalar model: of a code for a symbol."""
    constants: np.ndarray
    """[P] of the scalar model: of any answer to a prompt."""
    slots: np.ndarray
    """[2, S, C] of the pair model: what a code in the first and in the second answer adds to the
    logit of `A`."""
    biases: np.ndarray
    """[P] of the pair model: what a prompt adds to the logit of `A`."""


@functools.cache
def compared(
    *,
    skills: tuple[float, float] = (0.8, 0.4),
    sure: float = 1.0,
    offset: float = 2.0,
    problems: int = 256,
) -> Task:
    """Write the code of each symbol; the reward models have learned from pairs of answers.

    `answer` is the right codes and then, in units of 1 / `UNIT`, the scalar model's score of each
    code at each place and its constant, and the pair model's of the first and of the second answer
    and its bias. The task's own reward takes right answers alone.

    Args:
      skills: probability of a right code in a demonstration, of each half of the symbols.
      sure: what a right code adds to the logit of being preferred.
      offset: deviation of the constants of prompts that both models begin with.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 24])
        code = rng.permutation(SYMBOLS)
        skill = rng.permutation(np.repeat(skills, SYMBOLS // 2))

        def draw(size: int) -> np.ndarray:
            return rng.integers(SYMBOLS, size=(size, LENGTH))

        def build(content: np.ndarray, models: Models | None = None) -> Problems:
            size = len(content)
            right = rng.random(content.shape) < (skill[content] if models is None else 1.0)
            said = code[(content + ~right) % SYMBOLS]
            gold = np.concatenate([FIRST + said, np.full((size, 1), EOS)], axis=1)
            prompt = np.concatenate([FIRST + content, np.full((size, 1), ASK)], axis=1)
            return as_problems(prompt, answers(code[content], content, models), gold)

        asked = split.distinct(draw, problems, held_out=False)
        held = split.distinct(draw, HELD_OUT, held_out=True)
        models = trained(rng, asked, code, sure, offset)
        unseen = models._replace(constants=np.zeros(len(held)), biases=np.zeros(len(held)))
        return Splits(build(asked, models), build(held, unseen), build(split.repeated(draw, 4096)))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        right = jnp.all(completion[:LENGTH] == FIRST + answer[:LENGTH])
        return (right & (completion[LENGTH] == EOS)).astype(jnp.float32)

    return Task(FIRST + SYMBOLS, make, reward)


def trained(
    rng: np.random.Generator,
    content: np.ndarray,
    code: np.ndarray,
    sure: float,
    offset: float,
    *,
    pairs: int = 12,
    steps: int = 100,
) -> Models:
    """Both models, by gradient descent on the same comparisons, from the same random constants.

    The scalar model's loss is Bradley and Terry's, which does not change with the constant of a
    prompt; so its constants stay what they were. The pair model's is the cross-entropy of the
    letter, and each pair is shown in both orders.

    Args:
      rng: of the pairs, of which answer of a pair wins, and of the constants.
      content: [P, LENGTH] symbols of the prompts.
      code: [SYMBOLS], the right code of each symbol.
      sure: an answer wins with the probability sigmoid(sure * how many more codes are right).
      offset: deviation of the constants.
      pairs: comparisons of a prompt.
      steps: of gradient descent.
    """
    prompt = np.repeat(np.arange(len(content)), pairs)
    symbols, right = content[prompt], code[content[prompt]]
    one, two = (
        np.where(rng.random(right.shape) < 0.5, right, rng.integers(SYMBOLS, size=right.shape))
        for _ in range(2)
    )
    gap = np.sum(one == right, axis=1) - np.sum(two == right, axis=1)
    won = (rng.random(len(gap)) < 1 / (1 + np.exp(-sure * gap)))[:, None]
    better, worse = np.where(won, one, two), np.where(won, two, one)
    constants = offset * rng.standard_normal(len(content))

    def of(table: np.ndarray, said: np.ndarray) -> np.ndarray:
        return table[symbols, said].sum(axis=1)

    def to(table: np.ndarray, said: np.ndarray, each: np.ndarray) -> None:
        np.add.at(table, (symbols, said), np.repeat(each[:, None], LENGTH, axis=1))

    shown = np.zeros((SYMBOLS, SYMBOLS))  # gradients are means over what a parameter is part of
    for said in (better, worse):
        to(shown, said, np.ones(len(prompt)))
    shown = np.maximum(shown, 1)
    scores, slots = np.zeros((SYMBOLS, SYMBOLS)), np.zeros((2, SYMBOLS, SYMBOLS))
    biases = constants.copy()
    for _ in range(steps):
        error = 1 / (1 + np.exp(of(scores, better) - of(scores, worse)))
        change, changes, shift = (np.zeros_like(each) for each in (scores, slots, biases))
        to(change, better, error)
        to(change, worse, -error)
        for first, second, sign in ((better, worse, 1.0), (worse, better, -1.0)):
            logit = of(slots[0], first) + of(slots[1], second) + biases[prompt]
            error = sign / (1 + np.exp(sign * logit))
            to(changes[0], first, error)
            to(changes[1], second, error)
            np.add.at(shift, prompt, error)
        scores += change / shown
        slots += changes / shown
        biases += shift / (2 * pairs)
    return Models(scores, constants, slots, biases)


def answers(right: np.ndarray, content: np.ndarray, models: Models | None) -> np.ndarray:
    """[M, A] int: right codes [M, LENGTH] of symbols [M, LENGTH], and what the models say of them;
    zeros where there are none."""
    size = len(content)
    if models is None:
        return np.pad(right, ((0, 0), (0, 3 * LENGTH * SYMBOLS + 2)))
    parts = [
        models.scores[content].reshape(size, -1), models.constants[:, None],
        models.slots[0][content].reshape(size, -1), models.slots[1][content].reshape(size, -1),
        models.biases[:, None],
    ]  # fmt: skip
    return np.concatenate([right, np.round(UNIT * np.concatenate(parts, axis=1))], axis=1)


def scored(batch: Sampled) -> jax.Array:
    """[N] the scalar model's scores."""
    scores, constants, *_ = _models(batch.problems.answer)
    return _total(scores, _codes(batch.tokens)) + constants


def preferred(batch: Sampled) -> jax.Array:
    """[N] how probable the pair model finds it that an answer beats the right one, asked in both
    orders; 0 for what is out of form."""
    *_, one, two, biases = _models(batch.problems.answer)
    own, anchor = _codes(batch.tokens), batch.problems.answer[:, :LENGTH]
    first = jax.nn.sigmoid(_total(one, own) + _total(two, anchor) + biases)
    second = jax.nn.sigmoid(_total(one, anchor) + _total(two, own) + biases)
    return jnp.where(own[:, 0] < 0, 0.0, group.either_order(first, second))


def _models(answer: jax.Array) -> tuple[jax.Array, ...]:
    """Tables [N, LENGTH, SYMBOLS] and constants [N] of both models."""
    table = LENGTH * SYMBOLS
    ends = np.cumsum([LENGTH, table, 1, table, table])
    _, scores, constants, one, two, biases = jnp.split(answer / UNIT, ends, axis=1)
    tables = (each.reshape(-1, LENGTH, SYMBOLS) for each in (scores, one, two))
    scores, one, two = tables
    return scores, constants[:, 0], one, two, biases[:, 0]


def _codes(tokens: jax.Array) -> jax.Array:
    """[N, LENGTH] codes of completions [N, T]; -1 in those that are out of form."""
    said = tokens[:, :LENGTH] - FIRST
    stated = jnp.all((said >= 0) & (said < SYMBOLS), axis=1) & (tokens[:, LENGTH] == EOS)
    return jnp.where(stated[:, None], said, -1)


def _total(table: jax.Array, codes: jax.Array) -> jax.Array:
    """[N] sums of a table's scores [N, LENGTH, SYMBOLS] of codes [N, LENGTH]."""
    each = jnp.take_along_axis(table, jnp.maximum(codes, 0)[..., None], axis=2)[..., 0]
    return jnp.sum(jnp.where(codes < 0, MISSING, each), axis=1)
