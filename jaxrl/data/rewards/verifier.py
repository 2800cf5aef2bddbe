"""Verdicts of a language model on the answer alone, in place of a comparison by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl.data.rewards.judged import judge
from jaxrl.data.rewards.shape import Length, words
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Reward, Score

LONGEST = 10
"""Difference of lengths from which on the penalty grows no more."""


def verified(accepted: Any, stated: Any, difference: int) -> Any:
    """General-Reasoner: 1 for an answer that the verifier takes, less for one of another length.

    The penalty on length keeps a policy from pleasing the verifier with explanations.

    Formula: `v (1 - 0.05 min(|l - l_ref|, 10)) - 0.5 (1 - e)`, v accepted, e whether an answer was
      found
    Paper: Ma et al. 2025, "General-Reasoner: Advancing LLM Reasoning Across All Domains" (as in the
      authors' code)

    Args:
      accepted, stated: 0 or 1, or arrays of one shape.
      difference: of the lengths of answer and reference, in tokens or words.

    Returns:
      From -0.5 to 1.
    """
    return accepted * (1 - 0.05 * min(abs(difference), LONGEST)) - 0.5 * (1 - stated)


def by_verdict(
    find: Callable[[str], str | None],
    accepts: Callable[[Problem, str], bool],
    length: Length = words,
) -> Reward:
    """`verified` of the answer that a completion states.

    Args:
      find: completion -> its answer, or None.
      accepts: whether an answer is as good as the problem's own.
      length: of a text.
    """

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion)
        verdict = answer is not None and accepts(problem, answer)
        return _scored(problem, answer, verdict, length)

    return reward


def by_model(endpoint: judge.Endpoint, answer_format: str) -> Reward:
    """`verified` of an answer that a language model compares with the reference.

    It sees the answer and not how it was found. A completion without an answer is not asked about.

    Args:
      endpoint: the verifier.
      answer_format: where the answer is, see `jaxrl.data.sources.extract`.
    """
    find, compare = extract.extractor(answer_format), judge.correctness(endpoint)

    async def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion)
        if answer is None:
            return _scored(problem, None, False, words)
        score = await compare(problem, answer)
        return score if score.error else _scored(problem, answer, score.value >= 0.5, words)

    return reward


def _scored(problem: Problem, answer: str | None, verdict: bool, length: Length) -> Score:
    difference = abs(length(answer) - length(str(problem.answer))) if answer is not None else 0
    value = verified(float(verdict), float(answer is not None), difference)
    parts = {"accepted": float(verdict), "format": float(answer is not None)}
    return Score(value, parts)
