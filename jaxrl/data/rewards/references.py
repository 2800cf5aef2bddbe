"""What a verifier compares with: one answer, any of several, or none."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Mapping

from jaxrl.data.types import Problem, Reward, Score


def any_of(reward: Reward) -> Reward:
    """The reward, where an answer may be a list: each of its elements is right."""

    def best(problem: Problem, completion: str) -> Score | Awaitable[Score]:
        answer = problem.answer
        if isinstance(answer, Mapping):
            return Score(
                None,
                error=f"gold: the answer is {answer!r:.80}, an object; name what is meant in it, "
                "as in --answer-column COLUMN.KEY",
            )
        if not isinstance(answer, list | tuple):
            return reward(problem, completion)
        if str(list(answer)) in completion:  # a copy of the whole list is no answer
            return Score(0.0)
        if nested := [element for element in answer if isinstance(element, list | tuple)]:
            return Score(None, error=f"gold: the list of answers holds a list, {nested[0]!r:.80}")
        scores = [
            best(dataclasses.replace(problem, answer=element), completion) for element in answer
        ]
        valid = [score for score in scores if score.error is None]
        if not valid:
            return scores[0] if scores else Score(None, error="gold: the list of answers is empty")
        return max(valid, key=lambda score: score.value)

    return best


def answered(reward: Reward) -> Reward:
    """The reward, of rows that have an answer: it would take `None`, `nan` or nothing for one."""

    def checked(problem: Problem, completion: str) -> Score | Awaitable[Score]:
        answer = problem.answer
        if answer is None or answer != answer or not str(answer).strip():  # NaN is not itself
            return Score(
                None,
                error=f"gold: the row has no answer, it is {answer!r:.80}; name another column "
                "with --answer-column",
            )
        return reward(problem, completion)

    return any_of(checked)


def text(answer: object) -> str:
    """The text of an answer; pandas makes 4 the number 4.0 where another row has none."""
    return str(int(answer) if isinstance(answer, float) and answer.is_integer() else answer)


_FINAL = re.compile(r"\n#### *(\S[^\n]*?)\s*\Z")


def final(reward: Reward) -> Reward:
    """The reward; of an answer in the format of GSM8K, the line after `####` counts."""

    def of_line(problem: Problem, completion: str) -> Score | Awaitable[Score]:
        line = _FINAL.search(problem.answer) if isinstance(problem.answer, str) else None
        if line is None:
            return reward(problem, completion)
        return reward(dataclasses.replace(problem, answer=line[1]), completion)

    return of_line
