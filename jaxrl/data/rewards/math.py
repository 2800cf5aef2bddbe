"""Mathematical equivalence by math-verify.

math-verify's own time limit needs signals and so the main thread; here it is off. Score in a pool
with workers (`jaxrl.data.scoring.pool`), whose limit holds for any code on any thread.
"""

from __future__ import annotations

import logging
import re

from jaxrl.data.rewards import references
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Reward, Score

_LONGEST = 2_000  # characters of an answer
_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,12})?")
_EPS = 1e-6


def equivalent(answer_format: str = "boxed") -> Reward:
    """1 if the completion's answer means the same as `problem.answer`.

    Equal are expressions that simplify to each other, sets in any order, 1/2 and 0.5. A reference
    that cannot be parsed is an error, not a 0.

    Args:
      answer_format: see `jaxrl.data.sources.extract`.
    """
    from math_verify import verify  # seconds, which only those who use it need take

    find = extract.extractor(answer_format)
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the limits left to us

    def reward(problem: Problem, completion: str) -> Score:
        gold = _parse(references.text(problem.answer))
        if not gold:
            return Score(None, error=f"gold: math-verify cannot parse {problem.answer!r}")
        answer = find(completion)
        if answer is None or len(answer) > _LONGEST:
            return Score(0.0, {"correct": 0.0, "format": 0.0})
        correct = _consistent(answer) and verify(gold, _parse(answer), timeout_seconds=None)
        return Score(float(correct), {"correct": float(correct), "format": 1.0})

    return reward


def _consistent(answer: str) -> bool:
    """Whether the sides of an equation without variables are equal: math-verify reads the last."""
    from math_verify import verify

    *sides, last = re.split(r"(?<![<>!\\])=", answer)
    numbers = [side for side in sides if not re.search("[A-Za-z]", re.sub(r"\\[a-z]+", "", side))]
    return all(verify(_parse(side), _parse(last), timeout_seconds=None) for side in numbers)


def _parse(answer: str) -> list:
    from math_verify import parse

    return parse(f"\\boxed{{{answer}}}", parsing_timeout=None)


def nearness(answer: float, reference: float) -> float:
    """RandomCalculation's continuous reward, 1 at the reference, 0 when far off by either measure.

    Formula: `1 - min(|a - b|, 1) / 2 - min(|a - b| / (|b| + eps), 1) / 2`
    """
    error = abs(answer - reference)
    return 1.0 - 0.5 * min(error, 1.0) - 0.5 * min(error / (abs(reference) + _EPS), 1.0)


def near() -> Reward:
    """`nearness` of the last number of the completion to the answer; 0 without a number."""

    def reward(problem: Problem, completion: str) -> Score:
        stated = read_number(extract.last_number(completion) or "")
        expected = read_number(references.text(problem.answer).rpartition("####")[2])
        if expected is None:
            return Score(None, error=f"gold: the answer {problem.answer!r:.80} is not a number")
        value = 0.0 if stated is None else nearness(stated, expected)
        return Score(value, {"correct": float(value == 1.0), "format": float(stated is not None)})

    return references.any_of(reward)


def read_number(text: str) -> float | None:
    """The value of a text that is a number of bounded length, without exponent; else None."""
    number = extract.number(text)
    return float(number) if number and _NUMBER.fullmatch(number) else None
