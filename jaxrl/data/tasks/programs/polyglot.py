"""Programs of one line in several languages, judged by what they print; one verifier for all."""

from __future__ import annotations

import operator
import random

from jaxrl.data.rewards.programs import code
from jaxrl.data.sandbox.runner import Limits
from jaxrl.data.sources import generate, io_examples
from jaxrl.data.types import Problem, Score, Task

_SOLUTIONS = {
    "awk": "{{print {e}}}",
    "bash": "read x; echo $(({e}))",
    "python": "x=int(input());print({e})",
    "stack": "{p}",
}
"""A program for an expression in x, which `{e}` stands for; `{p}` is the expression in postfix."""
_APPLIED = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def task(
    languages: str = "python,bash,stack",
    tests: int = 2,
    slips: float = 0.0,
    wall_s: float = 5.0,
    ood_operators: int = 3,
) -> Task:
    """`stack f(x)=(x+3)*2` asks for a program in the language `stack` that reads x and prints f(x).

    A problem is a function with assertions, which become examples of standard input and output; so
    each language's programs are run and judged alike, and another language is another YAML file. A
    problem's domain is `new` for the last of the languages, and `known` for the others.

    Args:
      languages: names that `jaxrl tasks code` takes, of those that solutions exist for: awk, bash,
        python, stack.
      tests: assertions of a problem.
      slips: share of the solutions in the last language, for supervised fine-tuning, that leave out
        the second operator with its operand.
      wall_s: time limit of a test.
      ood_operators: of the ood split; 2 in train and test.
    """
    names = [name.strip() for name in languages.split(",")]
    if unknown := sorted({*names} - {*_SOLUTIONS}):
        raise ValueError(f"languages={languages!r}: no solutions in {', '.join(unknown)}; use "
                         f"{', '.join(_SOLUTIONS)}")  # fmt: skip
    if tests < 1 or not 0 <= slips <= 1 or ood_operators < 3:
        raise ValueError(
            f"tests={tests}, slips={slips}, ood_operators={ood_operators}: need 1 or more tests, a "
            "share, and 3 or more operators"
        )
    limits = Limits(wall_s=wall_s)
    rewards = {name: code.passes_tests(name, limits=limits) for name in names}

    def draw(stream: random.Random, count: int) -> tuple[str, tuple[tuple[str, int], ...]]:
        steps = tuple((stream.choice([*_APPLIED]), stream.randint(2, 9)) for _ in range(count))
        return stream.choice(names), steps

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("polyglot", split, seed, index)
        count = ood_operators if split == "ood" else 2
        name, steps = generate.draw(
            lambda stream: draw(stream, count), key=str, stream=stream, split=split
        )
        inputs = stream.sample(range(2, 30), tests)
        asserts = "\n".join(f"assert f({x}) == {_value(steps, x)}" for x in inputs)
        return Problem(
            id=f"polyglot/{name}/{_infix(steps, 'x')}",
            prompt=f"{name} f(x)={_infix(steps, 'x')}\n",
            answer=None,
            metadata={
                "tests": io_examples.of_asserts(asserts),
                "language": name,
                "solution": solution(name, steps),
                "slip": solution(name, steps[:1]),
            },
            domain="new" if name == names[-1] else "known",
        )

    def gold(problem: Problem) -> str:
        slipped = problem.domain == "new" and generate.rng("slip", problem.id).random() < slips
        program = problem.metadata["slip" if slipped else "solution"]
        return f"```{code.language(problem.metadata['language']).fence}\n{program}\n```"

    def reward(problem: Problem, completion: str) -> Score:
        return rewards[problem.metadata["language"]](problem, completion)

    task = Task(
        name="polyglot",
        problem=problem,
        reward=reward,
        gold=gold,
        alphabet=generate.ASCII,
        description=__doc__,
        sandboxed=True,
        seconds=lambda problem: code.seconds(tests, limits),
    )
    return task


def solution(language: str, steps: tuple[tuple[str, int], ...]) -> str:
    """A program in a language that applies the steps, operators with operands, to x."""
    postfix = " ".join(f"{operand} {name}" for name, operand in steps)
    variable = "$1" if language == "awk" else "x"
    return _SOLUTIONS[language].format(e=_infix(steps, variable), p=postfix)


def _value(steps: tuple[tuple[str, int], ...], value: int) -> int:
    """What the steps make of x."""
    for name, operand in steps:
        value = _APPLIED[name](value, operand)
    return value


def _infix(steps: tuple[tuple[str, int], ...], start: str) -> str:
    """`((x+3)*2)-5`, from the inside."""
    text = start
    for i, (name, operand) in enumerate(steps):
        text = f"({text}){name}{operand}" if i else f"{text}{name}{operand}"
    return text
