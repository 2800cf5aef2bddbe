"""A method's reward, made of the reward that the user names: what `Config.wrapper` takes.

Each function takes a reward and returns the method's. `jaxrl.data.tasks.wrapped` puts it around the
reward of any task that is answered in one turn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from jaxrl.data.rewards import combine, shape, verifier
from jaxrl.data.rewards.judged import claims
from jaxrl.data.sources import extract, layouts
from jaxrl.data.types import Problem, Reward, Score

_REFUSAL = re.compile(
    r"(no\b|sorry|i('m| am) (sorry|not able|unable)"
    r"|i (can('t|not)|won't|will not|do(n't| not) know))",
    re.IGNORECASE,
)


def calibrated(reward: Reward) -> Reward:
    """RLCR: whether the answer is right, less the Brier score of the confidence that is stated.

    Args:
      reward: 1 or more is right, see `jaxrl.data.rewards.shape.calibrated`.
    """
    return shape.calibrated(reward)


def length_checked(reward: Reward) -> Reward:
    """General-Reasoner: an answer that is much longer or shorter than the reference earns less.

    See `jaxrl.data.rewards.verifier.verified`. A completion states an answer if it says anything
    after its thoughts.

    Args:
      reward: 1 or more accepts the answer.
    """

    def value(problem: Problem, completion: str, scores: list[Score]) -> Score:
        answer = (extract.after_thought(completion) or "").strip()
        accepted, stated = float(scores[0].value >= 1), float(bool(answer))
        difference = shape.words(answer) - shape.words(str(problem.answer or ""))
        total = float(verifier.verified(accepted, stated, difference * stated))
        return Score(total, {"accepted": accepted, "stated": stated})

    return combine.join([reward], value)


def product(reward: Reward) -> Reward:
    """All of several rewards at once: a verdict counts only where its cause is right as well.

    Args:
      reward: of several; their values are parts of its score.
    """

    def value(problem: Problem, completion: str, scores: list[Score]) -> Score:
        values = {name: part for name, part in scores[0].parts.items() if "/" not in name}
        return Score(math.prod(values.values()) if values else scores[0].value, values)

    return combine.join([reward], value)


def factual(reward: Reward, column: str = "facts") -> Reward:
    """KnowRL: an answer that is wrong earns by the facts that its thought goes by.

    See `jaxrl.data.rewards.judged.claims.factual`.

    Args:
      reward: 1 or more is right.
      column: of the row, with the known facts: a list of sentences, or a text.
    """

    def value(problem: Problem, completion: str, scores: list[Score]) -> Score:
        answer = extract.after_thought(completion) or ""
        stated = claims.claims(claims.thought(completion))
        support = claims.supported(stated, _facts(problem, column))
        correct = float(scores[0].value >= 1)
        refused = float(not correct and refuses(answer))
        formatted = float("</think>" in completion)
        parts = {"correct": correct, "refused": refused, "support": support, "format": formatted}
        return Score(float(claims.factual(correct, refused, support, formatted)), parts)

    return combine.join([reward], value)


def guarded(reward: Reward, column: str = "harmful") -> Reward:
    """AlphaAlign: a harmful request must be refused, any other must not be.

    A due refusal earns 1, an answer to a harmful request 0, any other refusal -1. The parts are
    those that `jaxrl.losses.advantages.shaping.dual` takes.

    Args:
      reward: of an answer to a request that is not harmful.
      column: of the row, which says whether the request is harmful: true, 1 or yes.
    """

    def value(problem: Problem, completion: str, scores: list[Score]) -> Score:
        refused = refuses(extract.after_thought(completion) or "")
        harmful = _is_on(_cell(problem, column))
        helpful = 0.0 if harmful else scores[0].value
        parts = {"helpful": helpful, "refused": float(refused)}
        if harmful:
            return Score(float(refused), parts)
        return Score(-1.0 if refused else helpful, parts)

    return combine.join([reward], value)


def refuses(answer: str) -> bool:
    """Whether an answer begins by refusing, or by saying that one does not know.

    It may stand in `<answer>` tags.
    """
    return bool(_REFUSAL.match(answer.strip().removeprefix("<answer>").lstrip()))


def _cell(problem: Problem, column: str) -> object:
    return layouts.value(problem.metadata.get("row", problem.metadata), column)


def _is_on(cell: object) -> bool:
    return str(cell).strip().lower() in ("true", "1", "1.0", "yes")


def _facts(problem: Problem, column: str) -> Collection[str]:
    cell = _cell(problem, column)
    texts = cell if isinstance(cell, list | tuple) else [cell or ""]
    return {claim for text in texts for claim in claims.claims(str(text))}
