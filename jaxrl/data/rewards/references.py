"""What a verifier compares with: one answer, any of several, or none."""

from __future__ import annotations

import dataclasses
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
        scores = [
            reward(dataclasses.replace(problem, answer=element), completion) for element in answer
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
            return Score(None, error=f"gold: the row has no answer, it is {answer!r:.80}")
        return reward(problem, completion)

    return any_of(checked)
