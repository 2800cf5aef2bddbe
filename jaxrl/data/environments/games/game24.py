"""The 24 game, one step a turn: numbers are combined two by two until one is left."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

_NUMBER = r"(-?(?<![0-9])[0-9]{1,9}(?:/[0-9]{1,9})?(?![0-9]))"
_STEP = re.compile(rf"{_NUMBER}\s{{0,9}}([-+*/])\s{{0,9}}{_NUMBER}")

RULES = (
    "Make {target} from the numbers, each used once. In each turn think as long as you like in "
    "<think></think>, then write one step, such as 3 * 8: it takes two of the numbers away and "
    "adds their result."
)


@dataclasses.dataclass
class _Table:
    numbers: list[Fraction]
    target: int
    left: int
    """Illegal steps that are left."""
    thoughts: int = 0
    """Turns with a thought."""
    turns: int = 0

    def seen(self) -> str:
        """What the policy reads."""
        return "numbers: " + ", ".join(map(str, self.numbers))


def task(
    target: int = 24,
    numbers: int = 4,
    largest: int = 10,
    ood_largest: int | None = None,
    mistakes: int = 2,
    instructions: bool = True,
    think: bool = False,
) -> Task:
    """Numbers from which the target can be made, with a thought and a step in each turn.

    Args:
      target: to be made.
      numbers: how many are given.
      largest: they are from 1 to this in train and test.
      ood_largest: in the ood split; None means 3 more than `largest`.
      mistakes: steps that are none, or take a number that is not there, which an episode may have;
        one more ends it.
      instructions: begin with a message that says what to do.
      think: solutions have a thought before each step, see `thought`.
    """
    ood_largest = largest + 3 if ood_largest is None else ood_largest
    if not 2 <= numbers <= 5:
        raise ValueError(f"numbers={numbers}: choose from 2 to 5")
    if not 1 <= largest < ood_largest <= 100:
        raise ValueError(
            f"largest={largest}, ood_largest={ood_largest}: need 1 <= largest < ood_largest <= 100"
        )
    if mistakes < 0:
        raise ValueError(f"mistakes={mistakes} must be 0 or more")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        most = ood_largest if split == "ood" else largest

        def draw(stream: random.Random) -> list[int]:
            while True:
                operands = sorted(stream.randint(1, most) for _ in range(numbers))
                if reaches(tuple(map(Fraction, operands)), target):
                    return operands

        stream = generate.rng("game24", split, seed, index)
        operands = generate.draw(draw, key=str, stream=stream, split=split)
        return generate.user_problem(
            "game24", str(operands), _Table(operands, target, 0).seen(), operands
        )

    def begin(problem: Problem, seed: int) -> tuple[_Table, Opening]:
        table = _Table(list(map(Fraction, problem.answer)), target, mistakes)
        rules = {"role": "system", "content": RULES.format(target=target)}
        message = {"role": "user", "content": table.seen()}
        return table, Opening((rules, message) if instructions else (message,))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        left, way = list(map(Fraction, problem.answer)), ()
        for step_text in next(steps(left, target)):
            way = (*way, thought(left, target) * think + step_text)
            left = _taken(left, step_text)
        return way

    task = Task(
        name="game24",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def step(table: _Table, action: str) -> Reply:
    """One turn: its last line that is a step is taken. Reaching the target earns 1."""
    table.turns += 1
    table.thoughts += "<think>" in action
    after = _taken(table.numbers, extract.spoken(action))
    if after is None:
        table.left -= 1
        if table.left < 0:
            return Reply(reward=0.0, parts=_parts(table, False), done=True)
        message = {"role": "user", "content": f"that is no step\n{table.seen()}"}
        return Reply((message,), 0.0, _parts(table, False))
    table.numbers = after
    if len(after) == 1:
        solved = after[0] == table.target
        return Reply(reward=float(solved), parts=_parts(table, solved), done=True)
    return Reply(({"role": "user", "content": table.seen()},), 0.0, _parts(table, False))


def thought(numbers: Sequence[Fraction], target: int) -> str:
    """A step that leads to the target and what it makes; empty where none does.

    Args:
      numbers: that are there.
      target: to be made.
    """
    for step_text, *_ in steps(numbers, target):
        return f"<think>{step_text} = {_taken(numbers, step_text)[-1]}</think>"
    return ""


def promising(numbers: Sequence[Fraction], text: str, target: int) -> bool:
    """Whether the last step in a text can be taken, and the target can still be made after it."""
    after = _taken(numbers, text)
    return after is not None and reaches(tuple(sorted(after)), target)


def _parts(table: _Table, solved: bool) -> dict[str, float]:
    return {"solved": float(solved), "thoughts": table.thoughts / table.turns}


def _taken(numbers: Sequence[Fraction], text: str) -> list[Fraction] | None:
    """The numbers after the last step in a text; None where it is none that can be taken."""
    matches = _STEP.findall(text)
    if not matches:
        return None
    a, sign, b = matches[-1]
    rest = list(numbers)
    try:
        for operand in (Fraction(a), Fraction(b)):
            rest.remove(operand)
        return [*rest, _value(Fraction(a), sign, Fraction(b))]
    except (ValueError, ZeroDivisionError):
        return None


def _value(a: Fraction, sign: str, b: Fraction) -> Fraction:
    return {"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a / b


def steps(numbers: Sequence[Fraction], target: int) -> Iterator[tuple[str, ...]]:
    """Every way to the target, as the steps of its turns."""
    if len(numbers) == 1 and numbers[0] == target:
        yield ()
    for step, after in _options(numbers):
        if reaches(tuple(sorted(after)), target):
            for later_steps in steps(after, target):
                yield (step, *later_steps)


@functools.lru_cache(maxsize=1 << 14)
def reaches(numbers: tuple[Fraction, ...], target: int) -> bool:
    """Whether the target can be made of all the numbers."""
    if len(numbers) == 1:
        return numbers[0] == target
    return any(reaches(tuple(sorted(after)), target) for _, after in _options(numbers))


def _options(numbers: Sequence[Fraction]) -> Iterator[tuple[str, list[Fraction]]]:
    """Every step that can be taken, and the numbers after it."""
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        for sign in "+-*/":
            if sign != "/" or numbers[j] != 0:
                result = _value(numbers[i], sign, numbers[j])
                yield f"{numbers[i]} {sign} {numbers[j]}", [*rest, result]
