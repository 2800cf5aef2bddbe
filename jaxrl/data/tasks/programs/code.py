"""Programs from a description, scored by unit tests in the sandbox; several languages."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.data.rewards.programs import code
from jaxrl.data.sandbox.runner import Limits
from jaxrl.data.sources import generate, io_examples, records
from jaxrl.data.types import Problem, Task

_STEPS: tuple[tuple[str, str, Callable[[list[int], int], list[int]]], ...] = (
    ("keep those above {k}", "[v for v in x if v > {k}]", lambda x, k: [v for v in x if v > k]),
    ("add {k} to each", "[v + {k} for v in x]", lambda x, k: [v + k for v in x]),
    ("multiply each by {k}", "[v * {k} for v in x]", lambda x, k: [v * k for v in x]),
    ("drop the first {k}", "x[{k}:]", lambda x, k: x[k:]),
    ("reverse the order", "x[::-1]", lambda x, k: x[::-1]),
    ("sort from small to large", "sorted(x)", lambda x, k: sorted(x)),
    ("keep the even ones", "[v for v in x if not v % 2]", lambda x, k: [v for v in x if not v % 2]),
    ("square each", "[v * v for v in x]", lambda x, k: [v * v for v in x]),
)  # fmt: skip
"""Words, Python, and meaning of the operations on a list that problems are composed of."""


def task(
    steps: int = 2,
    tests: int = 4,
    language: str = "python",
    partial: bool = False,
    wall_s: float = 5.0,
    path: str = "",
    test_path: str = "",
    ood_steps: int | None = None,
) -> Task:
    """Programs that transform a line of integers, or that a file describes.

    Args:
      steps: operations in a row in train and test.
      tests: hidden tests of a made-up problem; one more example is shown.
      language: see `jaxrl.data.rewards.programs.code.language`.
      partial: the reward is the share of tests passed; if not, all or nothing.
      wall_s: time limit of a test.
      path: of records for the train split (see `jaxrl.data.sources.records`) with `question` and
        `tests`, a list of objects with `stdin` and `stdout`, or of assertions that calls of a
        function equal literals, which are rewritten for any language; empty makes problems up.
      test_path: of records for the test split; without it, a file has only a train split.
      ood_steps: operations in the ood split; None means one more than `steps`.
    """
    ood_steps = steps + 1 if ood_steps is None else ood_steps
    if not 1 <= steps < ood_steps:
        raise ValueError(f"steps={steps}, ood_steps={ood_steps}: need 1 <= steps < ood_steps")
    if tests < 1:
        raise ValueError(f"tests={tests}: at least 1 is needed to score a program")
    spoken = code.language(language)
    files = {"train": path} | ({"test": test_path} if test_path else {}) if path else {}
    read = functools.cache(records.read)
    limits = Limits(wall_s=wall_s)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        if files:
            record, where = read(files[split])[index], f"{files[split]}, record {index}"
            question = records.field(record, "question", where)
            tested = records.field(record, "tests", where)
            pairs = _tests(tested, where)
            if isinstance(tested[0], str):
                question = f"{question}\n{io_examples.CONVENTION}"
            solution = ""
        else:
            stream = generate.rng("code", split, seed, index)
            chosen = generate.draw(
                lambda stream: _draw(stream, ood_steps if split == "ood" else steps),
                key=str,
                stream=stream,
                split=split,
            )
            inputs = _inputs(stream, tests + 1)
            pairs = [(_line(x), _line(_apply(chosen, x))) for x in inputs]
            instruction = ", then ".join(_STEPS[i][0].format(k=k) for i, k in chosen)
            example, pairs = pairs[0], pairs[1:]
            question = (
                f"The input is one line of integers. {instruction.capitalize()}, and print the "
                f"resulting list on one line.\nInput: {example[0]}Output: {example[1]}"
            )
            solution = _program(chosen)
        prompt = f"{question}\n{spoken.ask} Give it in a fenced code block."
        return generate.user_problem("code", question, prompt, None, tests=pairs, solution=solution)

    task = Task(
        name="code",
        problem=problem,
        reward=code.passes_tests(language, partial=partial, limits=limits),
        gold=None
        if files or language != "python"
        else lambda problem: f"```python\n{problem.metadata['solution']}```",
        splits=tuple(files) or ("train", "test", "ood"),
        sizes={split: len(read(file)) for split, file in files.items()},
        alphabet=None if files else generate.ASCII,
        description=__doc__,
        sandboxed=True,
        seconds=lambda problem: code.seconds(len(problem.metadata["tests"]), limits),
    )
    return task


def _tests(tests: Any, where: str) -> list[tuple[str, str]]:
    """Pairs of standard input and output.

    Raises:
      ValueError: not a list of objects with two texts each, or of assertions that can be rewritten.
    """
    if not isinstance(tests, list) or not tests:
        raise ValueError(f"{where}: tests={tests!r:.80} must be a list of objects or assertions")
    if all(isinstance(test, str) for test in tests):
        try:
            return io_examples.of_asserts("\n".join(tests))
        except (ValueError, SyntaxError) as error:
            raise ValueError(
                f"{where}: {error}; leave it out, see jaxrl.data.sources.io_examples.usable"
            ) from error
    for i, test in enumerate(tests):
        for name in ("stdin", "stdout"):
            if not isinstance(test, dict) or not isinstance(test.get(name), str):
                raise ValueError(f"{where}: tests[{i}]={test!r:.80} needs {name!r}, a text")
    return [(test["stdin"], test["stdout"]) for test in tests]


def _draw(stream: random.Random, count: int) -> list[tuple[int, int]]:
    return [(stream.randrange(len(_STEPS)), stream.randint(2, 5)) for _ in range(count)]


def _apply(chosen: Sequence[tuple[int, int]], values: list[int]) -> list[int]:
    for step, k in chosen:
        values = _STEPS[step][2](values, k)
    return values


def _inputs(stream: random.Random, count: int) -> list[list[int]]:
    return [[stream.randint(-9, 20) for _ in range(stream.randint(6, 12))] for _ in range(count)]


def _line(values: Sequence[Any]) -> str:
    return " ".join(map(str, values)) + "\n"


def _program(chosen: Sequence[tuple[int, int]]) -> str:
    lines = ["x = list(map(int, input().split()))"]
    lines += [f"x = {_STEPS[step][1].format(k=k)}" for step, k in chosen]
    return "\n".join([*lines, "print(*x)", ""])
