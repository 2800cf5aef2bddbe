"""Integer arithmetic, `12+7=` to `19`, sized by digits, terms and operators for tiny models."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from jaxrl.data.rewards.steps import aligned
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Score, Task

ALPHABET = "0123456789+-*="
_NUMBER = re.compile(r"\s*(-?[0-9]{1,99})\s*")


def task(
    digits: int = 2,
    terms: int = 2,
    operators: str = "+-",
    slips: float = 0.0,
    worked: bool = False,
    stepwise: bool = False,
    ood_digits: int | None = None,
) -> Task:
    """Arithmetic problems.

    Args:
      digits: most digits of an operand in train and test; each operand's number of digits is
        uniform from 1 to this.
      terms: operands in a problem.
      operators: which of + - * are drawn; * binds tighter, as usual.
      slips: share of the solutions for supervised fine-tuning that leave out every carry, as in
        `17+8=15`. The reward counts such an answer as wrong. Needs the operator + alone.
      worked: solutions show their work, a term less at each step, as `19+5=24` for `12+7+5=`, and
        the answer is what follows the last `=`. Not with the operator *.
      stepwise: the reward is the mean of the answer's verdict and the share of the steps that agree
        with the solution's, see `jaxrl.data.rewards.steps`. Needs `worked`.
      ood_digits: digits of every operand of the ood split; None means one more than `digits`.
    """
    ood_digits = digits + 1 if ood_digits is None else ood_digits
    if digits < 1:
        raise ValueError(f"digits={digits}: operands need at least 1 digit")
    if terms < 2:
        raise ValueError(f"terms={terms}: a problem needs at least 2 terms")
    if not operators or set(operators) - set("+-*"):
        raise ValueError(f"operators={operators!r}: choose one or more of +-*")
    if not 0 <= slips <= 1:
        raise ValueError(f"slips={slips}: it is a share, from 0 to 1")
    if slips and operators != "+":
        raise ValueError(f"slips={slips} with operators={operators!r}: only sums carry; use +")
    if worked and "*" in operators:
        raise ValueError(
            f"worked=True with operators={operators!r}: terms add up left to right; use + and -"
        )
    if stepwise and not worked:
        raise ValueError("stepwise=True without worked: an answer alone has no steps; add worked")
    if ood_digits <= digits:
        raise ValueError(f"ood_digits={ood_digits} must exceed digits={digits}")

    def draw(stream: random.Random, lengths: range) -> str:
        expression = _operand(stream, lengths)
        for _ in range(terms - 1):
            expression += stream.choice(operators) + _operand(stream, lengths)
        return expression

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        lengths = range(ood_digits, ood_digits + 1) if split == "ood" else range(1, digits + 1)
        expression = generate.draw(
            lambda stream: draw(stream, lengths),
            key=str,
            stream=generate.rng("arithmetic", split, seed, index),
            split=split,
        )
        return Problem(
            id=f"arithmetic/{expression}",
            prompt=f"{expression}=",
            answer=evaluate(expression),
            domain="arithmetic",
        )

    def gold(problem: Problem) -> str:
        slipped = generate.rng("slip", problem.id).random() < slips
        add = without_carry if slipped else evaluate
        if worked:
            return "=".join(steps(problem.prompt.rstrip("="), add))
        return str(add(problem.prompt))

    task = Task(
        name="arithmetic",
        problem=problem,
        reward=steps_reward if stepwise else last_reward if worked else reward,
        gold=gold,
        alphabet=ALPHABET,
        description=__doc__,
        pure=True,
    )
    return task


def evaluate(expression: str) -> int:
    """The value of sums, differences and products of non-negative integers."""
    total = 0
    for sign, product in re.findall(r"([+-]?)([0-9*]+)", expression):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def without_carry(expression: str) -> int:
    """A sum of non-negative integers in which every carry is forgotten: 15 for `17+8`."""
    terms = [int(n) for n in re.findall("[0-9]+", expression)]
    total, place = 0, 1
    while place <= max(terms):
        total += sum(term // place % 10 for term in terms) % 10 * place
        place *= 10
    return total


def steps(expression: str, add: Callable[[str], int] = evaluate) -> list[str]:
    """What is left of a sum after each addition from the left: `["15+3", "18"]` for `9+6+3`."""
    first, *rest = re.findall(r"^-?[0-9]+|[+-][0-9]+", expression)
    left = []
    for i, term in enumerate(rest, 1):
        first = str(add(first + term))
        left.append("".join([first, *rest[i:]]))
    return left


def last_reward(problem: Problem, completion: str) -> Score:
    """`reward` of what follows the last `=`."""
    return reward(problem, completion.rpartition("=")[2])


def steps_reward(problem: Problem, completion: str) -> Score:
    """`last_reward` and the share of the steps that agree with those of the problem, half each."""
    outcome = last_reward(problem, completion)
    labels = aligned(completion.split("="), steps(problem.prompt.rstrip("=")))
    share = sum(labels) / len(labels)
    return Score((outcome.value + share) / 2, {**outcome.parts, "steps": share})


def reward(problem: Problem, completion: str) -> Score:
    """1 if the whole completion is the integer answer, else 0."""
    number = _NUMBER.fullmatch(completion)
    correct = number is not None and int(number[1]) == problem.answer
    return Score(float(correct), {"correct": float(correct), "format": float(number is not None)})


def _operand(stream: random.Random, lengths: range) -> str:
    length = stream.choice(lengths)
    return str(stream.randrange(10 ** (length - 1) if length > 1 else 0, 10**length))
