"""Sums that are too long to do in one's head, with a calculator to call."""

from __future__ import annotations

import ast
import dataclasses
import operator
import random
import re
from fractions import Fraction

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.environments.tools import definition
from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_NUMBER = re.compile(r"-?[0-9][0-9,]*")
_LONGEST = 200  # characters of an expression


@dataclasses.dataclass
class _Desk:
    answer: int
    left: int
    """Turns that are left."""
    calls: int = 0
    malformed: int = 0


def task(
    digits: int = 4,
    terms: int = 3,
    ood_digits: int | None = None,
    calls: int = 3,
    role: str = "tool",
) -> Task:
    """Sums and products of whole numbers; the last number of a turn without a call is the answer.

    Args:
      digits: of every operand of train and test problems.
      terms: operands of a problem.
      ood_digits: digits of every operand of the ood split; None means two more than `digits`.
      calls: turns with calls that an episode may have; one more ends it without reward.
      role: of the messages that give results; `user` where the chat template knows no `tool`.
    """
    ood_digits = digits + 2 if ood_digits is None else ood_digits
    if not 1 <= digits < ood_digits <= 20:
        raise ValueError(
            f"digits={digits}, ood_digits={ood_digits}: 1 <= digits < ood_digits <= 20"
        )
    if not 2 <= terms <= 8:
        raise ValueError(f"terms={terms}: a problem needs from 2 to 8")
    if calls < 1:
        raise ValueError(f"calls={calls}: allow one or more")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        size = ood_digits if split == "ood" else digits

        def draw(stream: random.Random) -> str:
            numbers = [str(stream.randrange(10 ** (size - 1), 10**size)) for _ in range(terms)]
            return numbers[0] + "".join(f" {stream.choice('+-*')} {n}" for n in numbers[1:])

        stream = generate.rng("calculator", split, seed, index)
        expression = generate.draw(draw, key=str, stream=stream, split=split)
        answer = int(calculate(expression))
        return generate.user_problem("calculator", expression, f"What is {expression}?", answer)

    def begin(problem: Problem, seed: int) -> tuple[_Desk, Opening]:
        messages = ({"role": "user", "content": problem.prompt},)
        return _Desk(problem.answer, calls), Opening(messages, tools=(CALCULATOR.schema,))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        expression = problem.prompt.removeprefix("What is ").removesuffix("?")
        return write_call(Call("calculator", {"expression": expression})), str(problem.answer)

    def step(desk: _Desk, action: str) -> Reply:
        outputs = definition.results([CALCULATOR], action)
        desk.calls += len(outputs)
        desk.malformed += definition.malformed(action)
        parts = {"calls": float(desk.calls), "malformed": float(desk.malformed)}
        if outputs and desk.left:
            desk.left -= 1
            messages = ({"role": role, "content": definition.joined(outputs)},)
            return Reply(messages, parts=parts, calls=len(outputs))
        numbers = [] if outputs else _NUMBER.findall(extract.spoken(action))
        correct = bool(numbers) and numbers[-1].replace(",", "") == str(desk.answer)
        parts |= {"correct": float(correct)}
        return Reply(reward=float(correct), parts=parts, done=True, calls=len(outputs))

    task = Task(
        name="calculator",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, roles=(role,), gold=gold, tools=True),
    )
    return task


def calculate(expression: str) -> str:
    """The value of sums, differences, products and quotients of numbers.

    Raises:
      ValueError: anything else.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"an expression may have {_LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is not an expression of numbers and + - * /") from error
    except ZeroDivisionError as error:
        raise ValueError("it divides by zero") from error
    if value.denominator == 1:
        return str(value)
    try:
        return f"{float(value):.10g}"
    except OverflowError as error:
        raise ValueError("its value is too large") from error


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("it may have numbers, + - * / and brackets alone")


CALCULATOR = Tool(
    "calculator",
    "The value of an expression of numbers with + - * / and brackets.",
    {
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
    lambda expression: calculate(expression),
)
