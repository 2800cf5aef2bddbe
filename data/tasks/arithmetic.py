"""Integer arithmetic, `12+7-3=` to `16`, or with its working, `19,16`; sized for tiny models."""

from __future__ import annotations

import itertools
import random
import re

from data import generate
from data.types import Problem, Score, Task

ALPHABET = "0123456789+-*=,"
_NUMBER = re.compile(r"\s*(-?[0-9]{1,99})\s*")


def task(
    digits: int = 2,
    terms: int = 2,
    operators: str = "+-",
    modulus: int = 0,
    working: float = 0.0,
    ood_digits: int | None = None,
) -> Task:
    """Arithmetic problems.

    Args:
      digits: most digits of an operand in train and test; each operand's number of digits is
        uniform from 1 to this.
      terms: operands in a problem.
      operators: which of + - * are drawn; * binds tighter, as usual.
      modulus: answers are taken modulo this number, `7+8=` to `5` modulo 10; 0 leaves them whole.
        A tiny model adds modulo 10 easily in steps and hardly at all at one glance.
      working: share of solutions that write the running total after each term, `19,16`, where the
        others give the result alone. If positive, of a completion only what follows the last comma
        is judged. Needs operators of + and - alone.
      ood_digits: digits of every operand of the ood split; None means one more than `digits`.
    """
    ood_digits = digits + 1 if ood_digits is None else ood_digits
    if digits < 1:
        raise ValueError(f"digits={digits}: operands need at least 1 digit")
    if terms < 2:
        raise ValueError(f"terms={terms}: a problem needs at least 2 terms")
    if not operators or set(operators) - set("+-*"):
        raise ValueError(f"operators={operators!r}: choose one or more of +-*")
    if modulus < 0 or modulus == 1:
        raise ValueError(f"modulus={modulus}: use 2 or more, or 0 for none")
    if not 0 <= working <= 1:
        raise ValueError(f"working={working}: it is a share, from 0 to 1")
    if working and "*" in operators:
        raise ValueError(
            f"working={working} with operators={operators!r}: a product has no running total; "
            "leave out the *"
        )
    if ood_digits <= digits:
        raise ValueError(f"ood_digits={ood_digits} must exceed digits={digits}")

    def reduce(number: int) -> int:
        return number % modulus if modulus else number

    def draw(stream: random.Random, lengths: range) -> str:
        expression = _operand(stream, lengths)
        for _ in range(terms - 1):
            expression += stream.choice(operators) + _operand(stream, lengths)
        return expression

    def problem(split: str, seed: int, index: int) -> Problem:
        made.check_split(split)
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
            answer=reduce(evaluate(expression)),
            domain="arithmetic",
        )

    def gold(problem: Problem) -> str:
        shown = generate.rng("working", problem.id).random() < working
        steps = [reduce(total) for total in totals(problem.prompt)] if shown else [problem.answer]
        return ",".join(map(str, steps))

    made = Task(
        name="arithmetic",
        problem=problem,
        reward=judge_last if working else reward,
        gold=gold,
        alphabet=ALPHABET,
        description=__doc__,
    )
    return made


def evaluate(expression: str) -> int:
    """The value of sums, differences and products of non-negative integers."""
    total = 0
    for sign, product in re.findall(r"([+-]?)([0-9*]+)", expression):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


def reward(problem: Problem, completion: str) -> Score:
    """1 if the whole completion is the integer answer, else 0."""
    number = _NUMBER.fullmatch(completion)
    correct = number is not None and int(number[1]) == problem.answer
    return Score(float(correct), {"correct": float(correct), "format": float(number is not None)})


def judge_last(problem: Problem, completion: str) -> Score:
    """As `reward`, of what follows the last comma: working is free, only the result counts."""
    return reward(problem, completion.rpartition(",")[2])


def totals(expression: str) -> list[int]:
    """The running totals of sums and differences, 19 and 16 of `12+7-3`."""
    return list(itertools.accumulate(map(int, re.findall(r"-?[0-9]+", expression))))[1:]


def _operand(stream: random.Random, lengths: range) -> str:
    length = stream.choice(lengths)
    return str(stream.randrange(10 ** (length - 1) if length > 1 else 0, 10**length))
