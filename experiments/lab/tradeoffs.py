"""Three rewards in conflict, and prompts that say how each of them is weighed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm, Sampled
from experiments.lab.effect import attempts
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, LENGTH, STYLES = 8, 4, 3
"""Symbols of the task and of a prompt, and styles, in each of which a symbol has a code."""
WEIGHTS = np.array([(0.7, 0.2, 0.1), (0.1, 0.7, 0.2), (0.2, 0.1, 0.7)])
"""[W, STYLES] of the styles; a prompt's domain is its row."""


@functools.cache
def tradeoffs(*, skill: float = 0.9, follows: float = 0.25, problems: int = 256) -> Task:
    """Write each symbol in one of its styles; the prompt's first token is the row of `WEIGHTS`.

    The reward of a style is the share of symbols that are right in it. A prompt's reward weighs the
    three, and is 1 where all is in the style of most weight. Demonstrations follow the weights at
    times and choose styles at random otherwise. `answer` is the right codes of the first style, of
    the second and of the third, then the domain.

    Args:
      skill: probability of a right code in a demonstration.
      follows: share of its symbols that are in the style of most weight by intent.
      problems: of each domain, in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 26])
        code = FIRST + rng.permutation(SYMBOLS * STYLES).reshape(STYLES, SYMBOLS)
        row = FIRST + SYMBOLS * STYLES + SYMBOLS + np.arange(len(WEIGHTS))

        def draw(size: int) -> np.ndarray:
            return rng.integers(SYMBOLS, size=(size, LENGTH))

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size = len(content)
            domain = np.arange(size) % len(WEIGHTS)
            style, said = np.argmax(WEIGHTS, axis=1)[domain][:, None], content
            if imperfect:
                some = rng.integers(STYLES, size=content.shape)
                style = np.where(rng.random(content.shape) < follows, style, some)
                said = (content + (rng.random(content.shape) > skill)) % SYMBOLS
            end = np.full((size, 1), EOS)
            gold = np.concatenate([code[style, said], end], axis=1)
            symbols = FIRST + SYMBOLS * STYLES + content
            prompt = [row[domain][:, None], symbols, np.full((size, 1), ASK)]
            right = code[:, content].transpose(1, 0, 2).reshape(size, -1)
            answer = np.concatenate([right, domain[:, None]], axis=1)
            return as_problems(np.concatenate(prompt, axis=1), answer, gold, domain)

        train = build(split.distinct(draw, len(WEIGHTS) * problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        found = heads(completion[None], answer[None])[0]
        weights = jnp.asarray(WEIGHTS)[answer[-1]]
        value = jnp.sum(weights * found) / jnp.max(weights)
        return jnp.where(value > 1 - 1e-4, 1.0, value).astype(jnp.float32)

    return Task(FIRST + SYMBOLS * STYLES + SYMBOLS + len(WEIGHTS), make, reward)


def heads(tokens: jax.Array, answers: jax.Array) -> jax.Array:
    """[N, STYLES] the three rewards of completions [N, T]; 0 for those that do not end in time."""
    codes = answers[:, :-1].reshape(-1, STYLES, LENGTH)
    share = jnp.mean(tokens[:, None, :LENGTH] == codes, axis=2)
    return jnp.where(tokens[:, LENGTH, None] == EOS, share, 0.0)


def even(batch: Sampled) -> jax.Array:
    """[N] the mean of the three rewards, whatever the prompt says."""
    return jnp.mean(heads(batch.tokens, batch.problems.answer), axis=1)


def controlled(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """`score`, the mean reward on held-out prompts; `score/D`, that on row D; `pass@1`, the share
    of rewards of 1; [S]."""
    rewards = attempts(model, task, arm, params, samples=samples)[1]
    figures = {"score": rewards.mean(axis=(1, 2)), "pass@1": (rewards == 1).mean(axis=(1, 2))}
    for d in range(len(WEIGHTS)):
        own = task.test.domain == d
        figures[f"score/{d}"] = (rewards.mean(axis=2) * own).sum(axis=1) / own.sum(axis=1)
    return figures
