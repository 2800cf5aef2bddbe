"""Sums that can be thought out or said at once, and a reward model that reads the answer alone."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm, Sampled
from experiments.lab.effect import held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

BASE, TERMS = 4, 6
"""Digits, and how many of them are added."""
STEPS = TERMS - 1
"""Of a sum: as many digits are answer and thought together."""
UNIT = 100
"""Of the scores in a problem's answer."""


@functools.cache
def sums_aloud(*, skill: float = 0.9, sure: float = 2.0, problems: int = 256) -> Task:
    """The last digit of a sum: in domain 0 after its partial sums and `ASK`, in domain 1 at once.

    A prompt says which, by its first token. The task's reward looks at the answer alone. `answer`
    is the right digit, then the reward model's score of each digit, in units of 1 / `UNIT`.

    Args:
      skill: probability that a step is right in a demonstration; an answer at once is as often
        right as an answer after thought.
      sure: difference of quality between right and wrong answers, in the logits of the comparisons
        that the reward model is trained on.
      problems: of each domain, in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 16])
        token = FIRST + rng.permutation(BASE)
        scores = np.round(UNIT * compared(rng, BASE**TERMS, sure)).astype(int)

        def draw(size: int) -> np.ndarray:
            return rng.integers(BASE, size=(size, TERMS))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size = len(content)
            at_once = np.arange(size) % 2 == 1
            right = rng.random((size, STEPS)) < (skill if imperfect else 1.0)
            slips = np.cumsum(~right, axis=1)
            partial = np.cumsum(content, axis=1)[:, 1:]
            said = token[(partial + slips) % BASE]
            mark, end = np.full((size, 1), ASK), np.full((size, 1), EOS)
            thought = np.concatenate([said[:, :-1], mark, said[:, -1:], end], axis=1)
            bare = np.concatenate([said[:, -1:], end, 0 * thought[:, 2:]], axis=1)
            mode = np.where(at_once, FILLER, ASK)[:, None]
            prompt = np.concatenate([mode, token[content], mark], axis=1)
            total, place = partial[:, -1] % BASE, content @ BASE ** np.arange(TERMS)
            judged = np.zeros((size, BASE), int)
            shifted = (np.arange(BASE) - total[:, None]) % BASE
            judged[:, token - FIRST] = np.take_along_axis(scores[place], shifted, axis=1)
            answer = np.concatenate([token[total][:, None], judged], axis=1)
            return as_problems(prompt, answer, np.where(at_once[:, None], bare, thought), at_once)

        train = build(split.distinct(draw, 2 * problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return (stated(completion) == answer[0]).astype(jnp.float32)

    return Task(FIRST + BASE, make, reward)


def compared(
    rng: np.random.Generator, prompts: int, sure: float, *, pairs: int = 12, steps: int = 200
) -> np.ndarray:
    """Scores [prompts, BASE] of answers, the first of which is right: Bradley-Terry on comparisons.

    Formula: gradient descent on `-log sigmoid(s_w - s_l) + 0.05 s^2`, a score for each answer

    Args:
      rng: of the pairs, and of which answer of a pair wins.
      prompts: each has scores of its own.
      sure: the right answer wins with the probability sigmoid(sure); others as often as not.
      pairs: comparisons of a prompt.
      steps: of gradient descent.
    """
    one = rng.integers(BASE, size=(prompts, pairs))
    two = (one + rng.integers(1, BASE, size=one.shape)) % BASE
    better = sure * ((one == 0).astype(float) - (two == 0))
    won = rng.random(one.shape) < 1 / (1 + np.exp(-better))
    first, second = np.where(won, one, two), np.where(won, two, one)
    rows = np.arange(prompts)[:, None]
    wins = np.zeros((prompts, BASE, BASE))
    np.add.at(wins, (rows, first, second), 1.0)
    scores = np.zeros((prompts, BASE))
    for _ in range(steps):
        lost = wins / (1 + np.exp(scores[:, :, None] - scores[:, None, :]))
        scores += 0.1 * (lost.sum(axis=2) - lost.sum(axis=1) - 0.1 * scores)
    return scores


def stated(tokens: jax.Array) -> jax.Array:
    """The answers of completions [..., T], [...]: after `ASK` or, without one, at the start; -1
    where no end follows."""
    marked = tokens == ASK
    at = jnp.where(jnp.any(marked, axis=-1), jnp.argmax(marked, axis=-1) + 1, 0)[..., None]
    padded = jnp.pad(tokens, [(0, 0)] * (tokens.ndim - 1) + [(0, 2)])
    said, end = (jnp.take_along_axis(padded, at + i, axis=-1)[..., 0] for i in (0, 1))
    return jnp.where(end == EOS, said, -1)


def preferred(batch: Sampled) -> jax.Array:
    """[N] the reward model's score of the answer, whatever was thought; -3 where there is none."""
    digit = stated(batch.tokens) - FIRST
    known = (digit >= 0) & (digit < BASE)
    at = jnp.clip(digit, 0, BASE - 1)[:, None] + 1
    scores = jnp.take_along_axis(batch.problems.answer, at, axis=1)[:, 0] / UNIT
    return jnp.where(known, scores, -3.0)


def own_domain(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, whose pass@1 is that of the domain that the arm trains on; [S]."""
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"pass@1": figures[f"pass@1/{int(np.argmax(arm.weights))}"]}
