"""Patches of small files with a bug, in Python or Bash, judged by the tests of a repository."""

from __future__ import annotations

import random
from typing import Literal

from jaxrl.data.rewards.programs import code, patches
from jaxrl.data.sandbox.runner import Limits
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Score, Task

_PATH = {"python": "lib.py", "bash": "lib.sh"}
_LINES = {
    "python": ("h=lambda x:x+{n}", "{f}=lambda x:h(x)+{n}"),
    "bash": ("h(){{ echo $(($1+{n})); }}", "{f}(){{ echo $(($(h $1)+{n})); }}"),
}
"""The function that the others call, and one of these."""
_DRIVERS = {
    "python": (
        "import sys\nfor line in sys.stdin:\n name,x=line.split()\n"
        " try:print(globals()[name](int(x)))\n except Exception:print()\n"
    ),
    "bash": "while read name x; do $name $x || echo; done\n",
}
_NAMES, _INPUTS = ("h", "f", "g"), (2, 7)
Constants = tuple[int, int, int]
"""What h, f and g add."""


def task(
    language: Literal["python", "bash"] = "python",
    tests: Literal["all", "fail_to_pass"] = "all",
    slips: float = 0.0,
    wall_s: float = 5.0,
) -> Task:
    """Three functions of a file, of which one adds a wrong number; two call the third.

    The prompt is the file and an issue, `f +2`: what f gives should be greater by 2. The answer is
    a patch, the name of the file and a line to be replaced with the one in its place:

        lib.py
        -f=lambda x:h(x)+1
        +f=lambda x:h(x)+3

    Every function has tests. Where a change of h repairs f too, it breaks tests that passed. The
    parts of the score are `resolved`, `fixed` (all that failed passes now), `breaking` (fixed, but
    not resolved), `fail_to_pass`, `pass_to_pass` and `applies`.

    Args:
      language: of the file.
      tests: which of them the reward asks for; `fail_to_pass` accepts patches that break others.
      slips: share of the solutions for supervised fine-tuning that change h, whatever the bug.
      wall_s: time limit of the tests.
    """
    if language not in _PATH or tests not in ("all", "fail_to_pass"):
        raise ValueError(
            f"language={language!r}, tests={tests!r}: use python or bash, and all or fail_to_pass"
        )
    if not 0 <= slips <= 1:
        raise ValueError(f"slips={slips}: it is a share, from 0 to 1")
    spoken, limits = code.language(language), Limits(wall_s=wall_s)
    path = _PATH[language]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        least = 5 if split == "ood" else 1

        def draw(stream: random.Random) -> tuple[int, int, Constants]:
            constants = tuple(stream.randint(least, least + 4) for _ in _NAMES)
            return stream.randrange(len(_NAMES)), stream.randint(1, 4), constants

        bug, off, broken = generate.draw(
            draw, key=str, stream=generate.rng("patches", split, seed, index), split=split
        )
        right = tuple(n + off * (i == bug) for i, n in enumerate(broken))
        cases = [(name, x) for name in _NAMES for x in _INPUTS]
        expected, actual = ([value(c, *case) for case in cases] for c in (right, broken))
        text = source(language, broken)
        return Problem(
            id=f"patches/{language}/{bug}/{off}/{broken}",
            prompt=f"{text}\n{_NAMES[bug]} +{off}\n",
            answer=expected,
            metadata={
                "files": {path: text},
                "cases": "".join(f"{name} {x}\n" for name, x in cases),
                "before": [a == b for a, b in zip(expected, actual, strict=True)],
                "solution": _patch(language, broken, bug, off),
                "slip": _patch(language, broken, 0, off),
            },
            domain="patches",
        )

    def gold(problem: Problem) -> str:
        slipped = generate.rng("slip", problem.id).random() < slips
        return problem.metadata["slip" if slipped else "solution"]

    def reward(problem: Problem, completion: str) -> Score:
        files = patches.apply(problem.metadata["files"], completion)
        if files is None:
            unchanged = {"fail_to_pass": 0.0, "pass_to_pass": 1.0}
            nothing = dict.fromkeys(("resolved", "fixed", "breaking", "applies"), 0.0)
            return Score(0.0, nothing | unchanged)
        program = f"{files[path]}\n{_DRIVERS[language]}"
        (outcome,) = code.run_each(spoken, program, [problem.metadata["cases"]], limits)
        printed = outcome.stdout.splitlines() + [""] * len(problem.answer)
        after = [line == str(x) for line, x in zip(printed, problem.answer, strict=False)]
        verdict = patches.judge(problem.metadata["before"], after)
        accepted = verdict.resolved if tests == "all" else verdict.fixed
        parts = {
            "resolved": float(verdict.resolved),
            "fixed": float(verdict.fixed),
            "breaking": float(verdict.breaking),
            **verdict._asdict(),
            "applies": 1.0,
        }
        return Score(float(accepted), parts, timed_out=outcome.end == "timeout")

    task = Task(
        name="patches",
        problem=problem,
        reward=reward,
        gold=gold,
        alphabet=generate.ASCII,
        description=__doc__,
        sandboxed=True,
        seconds=lambda problem: code.seconds(1, limits),
    )
    return task


def value(constants: Constants, name: str, x: int) -> int:
    """What a function of the file gives."""
    constant = constants[_NAMES.index(name)]
    return x + constant if name == "h" else x + constants[0] + constant


def source(language: str, constants: Constants) -> str:
    """The file with these constants."""
    return "\n".join(_line(language, name, n) for name, n in zip(_NAMES, constants, strict=True))


def _line(language: str, name: str, constant: int) -> str:
    return _LINES[language][name != "h"].format(f=name, n=constant)


def _patch(language: str, constants: Constants, place: int, off: int) -> str:
    name, old = _NAMES[place], constants[place]
    lines = [_line(language, name, n) for n in (old, old + off)]
    return f"{_PATH[language]}\n-{lines[0]}\n+{lines[1]}"
