"""Facts before an answer: what a policy claims of each symbol can be looked up, and so can what it
answers in the end.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm
from experiments.lab.effect import attempts, held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, LENGTH = 18, 3
"""Of the task, and of a prompt."""


@functools.cache
def claimed(
    *,
    skill: float = 0.75,
    follows: tuple[float, float] = (0.9, 0.15),
    refusing: float = 0.05,
    problems: int = 256,
) -> Task:
    """Claim the code of each symbol; then, after `ASK`, answer with the phrase of the first code.

    A symbol has another code at each place, so that the answer says nothing of the other claims. An
    answer of `FILLER` says that one does not know. `answer` is the codes, then the phrase.

    Args:
      skill: probability that a claim is right in a demonstration.
      follows: that its answer is the phrase of the first claim, for each half of the codes;
        otherwise it is another code's.
      refusing: share of the demonstrations that refuse.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 12])
        ring = np.stack([rng.permutation(SYMBOLS) for _ in range(LENGTH)])
        place, phrase = np.argsort(ring, axis=1), rng.permutation(SYMBOLS)
        known = rng.permutation(np.repeat(follows, SYMBOLS // 2))

        def draw(size: int) -> np.ndarray:
            return rng.integers(SYMBOLS, size=(size, LENGTH))

        def build(symbols: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, each = len(symbols), np.arange(LENGTH)
            right = rng.random(symbols.shape) < (skill if imperfect else 1.0)
            true, said = (
                ring[each, (place[each, symbols] + k) % SYMBOLS] for k in (1, np.where(right, 1, 2))
            )
            mark, end = np.full((size, 1), ASK), np.full((size, 1), EOS)
            concluded = FIRST + SYMBOLS + phrase[said[:, :1]]
            if imperfect:
                slips = rng.random((size, 1)) >= known[said[:, :1]]
                concluded = FIRST + SYMBOLS + phrase[(said[:, :1] + slips) % SYMBOLS]
                concluded = np.where(rng.random((size, 1)) < refusing, FILLER, concluded)
            gold = np.concatenate([FIRST + said, mark, concluded, end], axis=1)
            prompt = np.concatenate([FIRST + symbols, mark], axis=1)
            answer = np.concatenate([FIRST + true, FIRST + SYMBOLS + phrase[true[:, :1]]], axis=1)
            return as_problems(prompt, answer, gold)

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        said = jnp.append(answer[-1:], EOS)
        fits = jnp.all(completion[LENGTH + 1 :] == said) & (completion[LENGTH] == ASK)
        return fits.astype(jnp.float32)

    return Task(FIRST + 2 * SYMBOLS, make, reward)


def form(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether completions [..., T] have the form of claims and an answer, and whether they refuse.

    Each [...], 1.0 or 0.0.
    """
    codes = (tokens[..., :LENGTH] >= FIRST) & (tokens[..., :LENGTH] < FIRST + SYMBOLS)
    formed = jnp.all(codes, axis=-1) & (tokens[..., LENGTH] == ASK) & (tokens[..., -1] == EOS)
    refused = (tokens[..., LENGTH] == ASK) & (tokens[..., LENGTH + 1] == FILLER)
    refused = refused & (tokens[..., -1] == EOS)
    return formed.astype(jnp.float32), refused.astype(jnp.float32)


def support(tokens: jax.Array, answers: jax.Array) -> jax.Array:
    """The share of right claims [...] in completions [..., T], of answers [..., LENGTH + 1]."""
    return jnp.mean(tokens[..., :LENGTH] == answers[..., :LENGTH], axis=-1)


def factuality(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`; `false`, the share of claims that are wrong; `refused`; [S]."""
    tokens = attempts(model, task, arm, params, samples=1)[0].tokens
    answers = np.broadcast_to(task.test.answer, (*tokens.shape[:2], LENGTH + 1))[:, :, None]
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {
        "false": 1 - np.asarray(support(tokens, answers)).mean(axis=(1, 2)),
        "refused": np.asarray(form(tokens)[1]).mean(axis=(1, 2)),
    }
