"""Programs scored by what they do: run in the sandbox, compared outside of it.

Expected outputs never enter the sandbox, so nothing a program does in there (exiting early, lying
with its status, patching whatever it finds) can tell it what to print.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxrl.data.sandbox import runner
from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Reward, Score

_LANGUAGES = Path(__file__).parents[2] / "languages.yaml"


@dataclasses.dataclass(frozen=True)
class Language:
    """How programs of a language are asked for and run; after Agnostics (Boruch-Gruszecki 2025)."""

    ask: str
    fence: str
    """The label of its fenced blocks."""
    file: str
    run: list[str]
    compile: list[str] | None = None
    memory_mb: int = 512


def languages() -> list[str]:
    """Names of the languages that come along."""
    return sorted(yaml.safe_load(_LANGUAGES.read_text()))


@functools.cache
def language(name: str) -> Language:
    """A language by name, or from a YAML file of your own.

    Raises:
      ValueError: no such language, a field it must not have, or a program missing here.
    """
    path = Path(name) if name.endswith(".yaml") else _LANGUAGES
    exists = path.exists() if name.endswith(".yaml") else name in languages()
    if not exists:
        raise ValueError(
            f"language={name!r}: choose one of {', '.join(languages())}, or name a YAML file"
        )
    fields = yaml.safe_load(path.read_text())
    try:
        language = Language(**(fields[name] if path == _LANGUAGES else fields))
    except TypeError as error:
        raise ValueError(f"language={name!r}, in {path}: {error}") from error
    filled = {"run": _resolve(language.run, name)}
    if language.compile:
        filled["compile"] = _resolve(language.compile, name)
    return dataclasses.replace(language, **filled)


def run_each(
    spoken: Language,
    program: str,
    stdins: Sequence[str],
    limits: runner.Limits,
    *,
    until_failure: bool = False,
) -> list[runner.Outcome]:
    """Run a program on each input, compiled once where its language is; see `sandbox.run_each`."""
    return runner.run_each(
        spoken.run,
        stdins,
        prepare=spoken.compile,
        files={spoken.file: program},
        limits=dataclasses.replace(limits, memory_mb=max(limits.memory_mb, spoken.memory_mb)),
        until_failure=until_failure,
    )


def passes_tests(
    language_name: str = "python",
    *,
    partial: bool = False,
    limits: runner.Limits = runner.Limits(),
) -> Reward:
    """Reward of a program by `problem.metadata["tests"]`, a list of (stdin, stdout) pairs.

    Outputs are equal if their lines are, trailing white space aside, and the status must be 0.
    A test that overruns its time is one that fails, and the score says that there was one.

    Args:
      language_name: see `language`.
      partial: the share of tests passed; if not, 1 for all of them, else 0, and the first that
        fails ends it.
      limits: of each test.
    """
    spoken = language(language_name)

    def reward(problem: Problem, completion: str) -> Score:
        program = extract.fenced(completion, spoken.fence)
        tests = problem.metadata["tests"]
        if not tests:
            return Score(None, error=f"gold: problem {problem.id!r} has no tests")
        if program is None:
            return Score(0.0, {"correct": 0.0, "format": 0.0})
        stdins = [stdin for stdin, _ in tests]
        outcomes = run_each(spoken, program, stdins, limits, until_failure=not partial)
        passed = sum(
            outcome.end == "exit"
            and outcome.status == 0
            and _lines(outcome.stdout) == _lines(expected)
            for outcome, (_, expected) in zip(outcomes, tests, strict=False)
        )
        correct = float(passed == len(tests))
        return Score(
            passed / len(tests) if partial else correct,
            {"correct": correct, "format": 1.0},
            timed_out=any(outcome.end == "timeout" for outcome in outcomes),
        )

    return reward


def seconds(tests: int, limits: runner.Limits = runner.Limits()) -> float:
    """How long judging a program may take by the limits of its tests, compilation included."""
    return limits.wall_s * (tests + 1) + runner.START_S


def calls_of_asserts(source: str) -> list[tuple[str, Any]]:
    """The (expression, value) pairs of `assert expression == literal` lines, as in MBPP.

    Raises:
      ValueError: an assertion of another form, whose value would have to be shown to the program.
    """
    pairs = []
    for node in ast.parse(source).body:
        match node:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
                pairs.append((ast.unparse(left), ast.literal_eval(right)))
            case _:
                raise ValueError(f"not `assert CALL == LITERAL`: {ast.unparse(node)}")
    return pairs


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _resolve(command: list[str], name: str) -> list[str]:
    """With the absolute path of its program."""
    program = command[0]
    if program == "{python}":
        return [sys.executable, *command[1:]]
    if program.startswith("./"):
        return command
    path = shutil.which(program)
    if path is None:
        raise ValueError(f"language={name!r} needs {program!r}, which is not installed here")
    return [path, *command[1:]]
