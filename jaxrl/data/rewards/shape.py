"""Rewards of a completion's form: its length, its repetitions, its confidence."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable

from jaxrl.data.rewards import combine
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Reward, Score

Length = Callable[[str], int]
_CONFIDENCE = re.compile(r"<confidence>\s*(0?\.[0-9]+|[01](?:\.0*)?)\s*</confidence>")


def words(text: str) -> int:
    """Number of words; a tokenizer's count can be given instead wherever a length is measured."""
    return len(text.split())


def overlong(longest: int, buffer: int, length: Length = words) -> Reward:
    """Soft over-long punishment of DAPO (Yu et al. 2025), in [-1, 0].

    0 up to `longest - buffer`, then falling linearly to -1 at `longest`, and -1 beyond.
    """
    if not 0 < buffer <= longest:
        raise ValueError(f"buffer={buffer} must be in (0, longest={longest}]")

    def reward(problem: Problem, completion: str) -> Score:
        over = length(completion) - (longest - buffer)
        return Score(-min(max(over / buffer, 0.0), 1.0))

    return reward


def length_penalty(reward: Reward, per_token: float, length: Length = words) -> Reward:
    """`r - per_token * length`."""
    cost: Reward = lambda problem, completion: Score(-float(length(completion)))  # noqa: E731
    return combine.weighted_sum({"reward": (1.0, reward), "length": (per_token, cost)})


def cosine(
    reward: Reward,
    longest: int,
    *,
    right: tuple[float, float] = (2.0, 1.0),
    wrong: tuple[float, float] = (-10.0, 0.0),
    exceeded: float = -10.0,
    length: Length = words,
) -> Reward:
    """Cosine length-scaled reward (Yeo et al. 2025, "Demystifying Long Chain-of-Thought").

    With `(a, b)` for lengths 0 and `longest`, the value at length n is
    `b + (a - b) (1 + cos(pi n / longest)) / 2`; right answers should be short and wrong ones long.

    Args:
      reward: 1 or more is right.
      longest: from here on the value is `exceeded`.
      right: values of a right answer at lengths 0 and `longest`.
      wrong: the same for a wrong one.
      exceeded: value of a completion as long as `longest` or longer.
      length: measures a completion.
    """

    def shape(problem: Problem, completion: str, scores: list[Score]) -> Score:
        count = length(completion)
        start, end = right if scores[0].value >= 1 else wrong
        value = end + 0.5 * (start - end) * (1 + math.cos(math.pi * count / longest))
        return Score(exceeded if count >= longest else value, {"raw": scores[0].value})

    return combine.join([reward], shape)


def repetition(size: int = 3, worst: float = -1.0) -> Reward:
    """`worst` x the share of n-grams that are repeats (Yeo et al. 2025); 0 if all differ."""
    if size < 1:
        raise ValueError(f"size={size}: n-grams need at least 1 word")

    def reward(problem: Problem, completion: str) -> Score:
        completion_words = completion.lower().split()
        grams = [
            tuple(completion_words[i : i + size]) for i in range(len(completion_words) - size + 1)
        ]
        return Score(worst * (1 - len(set(grams)) / len(grams)) if grams else 0.0)

    return reward


def calibrated(reward: Reward) -> Reward:
    """RLCR (Damani et al. 2025): `correct - (q - correct)^2`, with q a stated confidence.

    The completion states q in [0, 1] as `<confidence>q</confidence>`; one that states none, or
    another number, gets the lowest value, -1. The Brier term is a proper scoring rule, so that
    honesty pays, and being right always beats being honest about a wrong answer.

    Args:
      reward: 1 or more is correct; it sees the completion without the statement.
    """

    def bare(problem: Problem, completion: str) -> Score | Awaitable[Score]:
        return reward(problem, _CONFIDENCE.sub("", completion))

    def value(problem: Problem, completion: str, scores: list[Score]) -> Score:
        correct = float(scores[0].value >= 1)
        stated = _CONFIDENCE.findall(extract.after_thought(completion) or "")
        if len(stated) != 1:
            return Score(-1.0, {"correct": correct, "format": 0.0})
        brier = (float(stated[0]) - correct) ** 2
        parts = {"correct": correct, "brier": brier, "confidence": float(stated[0]), "format": 1.0}
        return Score(correct - brier, parts)

    return combine.join([bare], value)
