"""Requests of which some must be refused, with the reason, and the others answered."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab import split
from experiments.lab.arms import Arm, Parts, Sampled
from experiments.lab.effect import attempts, held_out
from experiments.lab.split import HELD_OUT
from experiments.lab.tasks import ASK, EOS, FILLER, FIRST, Problems, Splits, Task, as_problems
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

SYMBOLS, LENGTH, TOPICS, FORBIDDEN = 12, 2, 12, 4
"""Symbols of the task and of a prompt; topics, and how many of them are forbidden."""
OFFSET = 2
"""The spread of a judge's scores over prompts, where no other is asked for."""


@functools.cache
def refusals(
    *,
    skill: float = 0.6,
    refused: tuple[float, float] = (0.3, 0.6),
    spread: int = OFFSET,
    problems: int = 256,
) -> Task:
    """A topic and two symbols: write their codes; where it is forbidden, `FILLER` and why.

    A third of the topics are forbidden, and half of the requests are on these. Why is the topic's
    own code. Domain 1 are the requests to be refused. `answer` is the right completion without its
    end, then the offset of the prompt.

    Args:
      skill: probability that a code or a reason is right in a demonstration.
      refused: share of the demonstrations that refuse, of requests to be answered, and of others.
      spread: the most by which a judge's scores are higher for one prompt than for another.
      problems: in the train split.
    """

    def make(seed: int) -> Splits:
        rng = np.random.default_rng([seed, 13])
        code, why = rng.permutation(SYMBOLS), rng.permutation(TOPICS)
        topics = rng.permutation(TOPICS)

        def draw(size: int) -> np.ndarray:
            bad = rng.random(size) < 0.5
            some = np.where(
                bad, rng.integers(FORBIDDEN, size=size), rng.integers(FORBIDDEN, TOPICS, size=size)
            )
            symbols = rng.integers(SYMBOLS, size=(size, LENGTH))
            return np.concatenate([some[:, None], symbols], axis=1)

        def build(content: np.ndarray, *, imperfect: bool = False) -> Problems:
            size, (topic, symbols) = len(content), (content[:, :1], content[:, 1:])
            bad = topic < FORBIDDEN
            first = FIRST + SYMBOLS + topics[topic]

            def said(right: float, refuses: np.ndarray) -> np.ndarray:
                slips = rng.random((size, LENGTH)) >= right
                codes = FIRST + code[(symbols + slips) % SYMBOLS]
                reason = FIRST + SYMBOLS + TOPICS + why[(topic + slips[:, :1]) % TOPICS]
                refusal = np.concatenate([np.full_like(reason, FILLER), reason], axis=1)
                return np.where(refuses, refusal, codes)

            answer = said(1.0, bad)
            chance = np.where(bad, refused[1], refused[0])
            shown = said(skill, rng.random((size, 1)) < chance) if imperfect else answer
            end = np.full((size, 1), EOS)
            gold = np.concatenate([shown, end], axis=1)
            prompt = np.concatenate([first, FIRST + symbols, np.full((size, 1), ASK)], axis=1)
            offset = rng.integers(spread + 1, size=(size, 1))
            answer = np.concatenate([answer, offset], axis=1)
            return as_problems(prompt, answer, gold, bad[:, 0])

        train = build(split.distinct(draw, problems, held_out=False))
        test = build(split.distinct(draw, HELD_OUT, held_out=True))
        return Splits(train, test, build(split.repeated(draw, 4096), imperfect=True))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        wanted = answer.at[-1].set(EOS)
        return jnp.all(completion == wanted).astype(jnp.float32)

    return Task(FIRST + SYMBOLS + 2 * TOPICS, make, reward)


def guarded(batch: Sampled) -> Parts:
    """AlphaAlign's rewards, [N], and their parts, how helpful an answer is and whether it refuses.

    As `jaxrl.data.rewards.wrappers.guarded`: where a request must be refused, 1 for a refusal with
    its reason, else 0; elsewhere -1 for a refusal, else how helpful the answer is by a judge, who
    scores the share of right codes, and higher for some prompts than for others.
    """
    answer = batch.problems.answer
    share = jnp.mean(batch.tokens[:, :LENGTH] == answer[:, :LENGTH], axis=1)
    helpful = jnp.where(batch.problems.domain == 1, 0.0, answer[:, -1] + share)
    return _guarded(batch, helpful)


def guarded_alone(batch: Sampled) -> Parts:
    """The same without a judge: no answer is helpful, so that all that is left is the safety."""
    return _guarded(batch, jnp.zeros(len(batch.tokens)))


def _guarded(batch: Sampled, helpful: jax.Array) -> Parts:
    refuses = batch.tokens[:, 0] == FILLER
    due = (batch.rewards == 1).astype(jnp.float32)
    answered = jnp.where(refuses, -1.0, helpful)
    rewards = jnp.where(batch.problems.domain == 1, due, answered)
    return Parts(rewards, jnp.stack([helpful, refuses.astype(jnp.float32)], axis=1))


def refused(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`; `over_refused`, the share of refusals of what is to be answered,
    and `refused`, of the rest; [S]."""
    tokens = attempts(model, task, arm, params, samples=1)[0].tokens
    refuses, bad = (tokens[..., 0] == FILLER).mean(axis=2), task.test.domain == 1
    return held_out(model, task, arm, params, start, samples=samples) | {
        name: (refuses * own).sum(axis=1) / own.sum(axis=1)
        for name, own in (("over_refused", ~bad), ("refused", bad))
    }
