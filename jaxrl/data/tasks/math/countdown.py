"""Countdown: use each of the given numbers once to reach a target."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_NODES = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_ALLOWED = re.compile(r"[0-9+\-*/() ]{1,200}")


def task(
    numbers: int = 3,
    largest: int = 20,
    largest_target: int = 100,
    operators: str = "+-*/",
    ood_numbers: int | None = None,
    answer_format: str = "tags",
    template: str = "",
    backtracks: int = 0,
    sound: bool = True,
) -> Task:
    """Countdown problems, each made from a solution.

    Args:
      numbers: how many are given in train and test.
      largest: they are from 1 to this.
      largest_target: the target is from 1 to this.
      operators: which of + - * / may be used.
      ood_numbers: numbers in the ood split; None means one more than `numbers`.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
      backtracks: wrong attempts in the gold solution, each given up, before the answer.
      sound: False: the answer of the gold solution is wrong too, for studies of what traces teach.
    """
    ood_numbers = numbers + 1 if ood_numbers is None else ood_numbers
    if not 2 <= numbers < ood_numbers <= 8:
        raise ValueError(
            f"numbers={numbers}, ood_numbers={ood_numbers}: need 2 <= numbers < ood_numbers <= 8"
        )
    if not operators or set(operators) - set(_OPERATORS):
        raise ValueError(f"operators={operators!r}: choose one or more of +-*/")
    if largest < 1 or largest_target < 1:
        raise ValueError(f"largest={largest}, largest_target={largest_target} must be positive")
    if backtracks < 0:
        raise ValueError(f"backtracks={backtracks} must be 0 or more")
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]

    def draw(stream: random.Random, count: int) -> tuple[list[int], int, str]:
        while True:
            operands = [stream.randint(1, largest) for _ in range(count)]
            value, expression = combine(
                stream, [(Fraction(n), str(n)) for n in operands], operators
            )
            if value.denominator == 1 and 1 <= value <= largest_target:
                return operands, int(value), expression

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        operands, target, solution = generate.draw(
            lambda stream: draw(stream, ood_numbers if split == "ood" else numbers),
            key=lambda sample: _key(sample[0], sample[1]),
            stream=generate.rng("countdown", split, seed, index),
            split=split,
        )
        question = (
            f"Use each of the numbers {', '.join(map(str, operands))} exactly once, with "
            f"{' '.join(operators)} and brackets, to make {target}."
        )
        return generate.user_problem(
            "countdown",
            _key(operands, target),
            extract.fill(template, question),
            target,
            numbers=operands,
            operators=operators,
            solution=solution,
        )

    def reward(problem: Problem, completion: str) -> Score:
        expression = _plain(find(completion), problem.answer)
        value = None if expression is None else evaluate(expression, problem.metadata["operators"])
        used = value is not None and Counter(
            map(int, re.findall(r"[0-9]+", expression))
        ) == Counter(problem.metadata["numbers"])
        correct = used and value == problem.answer
        return Score(
            float(correct),
            {"correct": float(correct), "format": float(value is not None), "numbers": float(used)},
        )

    def gold(problem: Problem) -> str:
        wrong = attempts(problem, backtracks + (not sound))
        last = problem.metadata["solution"] if sound else wrong.pop()[1]
        tried = [
            f"{expression} = {value}, not {problem.answer}. Let me go back.\n"
            for value, expression in wrong
        ]
        return "".join(tried) + extract.write_answer(answer_format, last)

    task = Task(
        name="countdown",
        problem=problem,
        reward=reward,
        gold=gold,
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def attempts(problem: Problem, count: int) -> list[tuple[Fraction, str]]:
    """(value, expression) of random uses of all numbers that miss the target.

    Raises:
      ValueError: in a thousand draws for each, too few miss.
    """
    stream = generate.rng("countdown attempts", problem.id)
    terms = [(Fraction(n), str(n)) for n in problem.metadata["numbers"]]
    misses: list[tuple[Fraction, str]] = []
    for _ in range(1000 * count):
        if len(misses) == count:
            break
        value, expression = combine(stream, list(terms), problem.metadata["operators"])
        if value != problem.answer:
            misses.append((value, expression))
    if len(misses) < count:
        raise ValueError(
            f"{problem.id}: {len(misses)} of {count} wrong attempts found; set backtracks=0, or "
            "more operators or numbers"
        )
    return misses


def _plain(expression: str | None, target: int) -> str | None:
    """The expression with the signs of a keyboard, without a final `= target`."""
    if expression is None:
        return None
    for sign, names in {"*": "× · ⋅ \\times \\cdot", "/": "÷ \\div", "-": "− –"}.items():
        for name in names.split():
            expression = expression.replace(name, sign)
    return re.sub(rf"\s*=\s*{target}\s*$", "", expression.strip().strip("$").rstrip("."))


def evaluate(expression: str, operators: str = "+-*/", *, signs: bool = False) -> Fraction | None:
    """The exact value of an expression in whole numbers; None if it is not one or divides by 0.

    Args:
      expression: in digits, operators, brackets and spaces.
      operators: those that it may have.
      signs: whether a number or bracket may be negated.
    """
    if not _ALLOWED.fullmatch(expression) or re.search(r"//|\*\*|\b0[0-9]", expression):
        return None

    def value(node: ast.AST) -> Fraction:
        match node:
            case ast.Constant(value=int(number)):
                return Fraction(number)
            case ast.BinOp(left, op, right) if _NODES[type(op)] in operators:
                return _OPERATORS[_NODES[type(op)]](value(left), value(right))
            case ast.UnaryOp(ast.USub(), inner) if signs:
                return -value(inner)
        raise ValueError("not an expression in whole numbers and the operators allowed")

    try:
        return value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def combine(
    stream: random.Random, terms: list[tuple[Fraction, str]], operators: str
) -> tuple[Fraction, str]:
    """Join random pairs of (value, expression) until one is left; nothing is divided by 0."""
    while len(terms) > 1:
        (a, left), (b, right) = (terms.pop(stream.randrange(len(terms))) for _ in range(2))
        sign = stream.choice([o for o in operators if o != "/" or b] or ["+"])
        joined = f"{left} {sign} {right}"
        terms.append((_OPERATORS[sign](a, b), f"({joined})" if terms else joined))
    return terms[0]


def _key(numbers: Sequence[int], target: int) -> str:
    return f"{sorted(numbers)}={target}"
