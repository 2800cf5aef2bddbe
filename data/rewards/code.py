"""Programs judged by what they do: run in the sandbox, compared outside of it.

Expected outputs never enter the sandbox, so nothing a program does in there (exiting early, lying
with its status, patching whatever it finds) can tell it what to print.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import secrets
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from data import extract, sandbox
from data.types import Problem, Reward, Score

_LANGUAGES = Path(__file__).parents[1] / "languages"


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
    return sorted(path.stem for path in _LANGUAGES.glob("*.yaml"))


@functools.cache
def language(name: str) -> Language:
    """A language by name, or from a YAML file of your own.

    Raises:
      ValueError: no such language, a field it must not have, or a program missing here.
    """
    path = Path(name) if name.endswith(".yaml") else _LANGUAGES / f"{name}.yaml"
    if not path.exists():
        raise ValueError(
            f"language={name!r}: choose one of {', '.join(languages())}, or name a YAML file"
        )
    try:
        found = Language(**yaml.safe_load(path.read_text()))
    except TypeError as error:
        raise ValueError(f"language={name!r}, in {path}: {error}") from error
    filled = {"run": _resolve(found.run, name)}
    if found.compile:
        filled["compile"] = _resolve(found.compile, name)
    return dataclasses.replace(found, **filled)


def run(
    spoken: Language, program: str, stdin: str, limits: sandbox.Limits = sandbox.Limits()
) -> sandbox.Outcome:
    """Run a program, compiled first where its language is, on one input."""
    command = spoken.run
    if spoken.compile:
        steps = f"{shlex.join(spoken.compile)} && exec {shlex.join(spoken.run)}"
        command = ["/bin/sh", "-c", steps]
    return sandbox.run(
        command,
        files={spoken.file: program},
        stdin=stdin,
        limits=dataclasses.replace(limits, memory_mb=max(limits.memory_mb, spoken.memory_mb)),
    )


def run_each(
    spoken: Language, program: str, stdins: Sequence[str], limits: sandbox.Limits
) -> list[str | None]:
    """What a program prints on each input, one process an input; None where it fails.

    Compiled once and all in one sandbox, as its start costs more than most programs. The wall
    clock and processor limits hold for each input, the limit of output for all together.
    """
    mark = secrets.token_hex(8)
    command = f"timeout -s KILL {limits.wall_s} {shlex.join(spoken.run)}"
    script = f"""{shlex.join(spoken.compile) if spoken.compile else ":"} || exit 1
for i in $(seq 0 {len(stdins) - 1}); do
  {command} < inputs/$i
  printf '\n%s %s\n' {mark} $?
done
"""
    outcome = sandbox.run(
        ["/bin/sh", "-c", script],
        files={spoken.file: program} | {f"inputs/{i}": text for i, text in enumerate(stdins)},
        limits=dataclasses.replace(
            limits,
            wall_s=limits.wall_s * (len(stdins) + 1),
            memory_mb=max(limits.memory_mb, spoken.memory_mb),
        ),
    )
    parts = outcome.stdout.split(f"\n{mark} ")
    texts = [parts[0]] + [part.partition("\n")[2] for part in parts[1:]]
    statuses = [part.partition("\n")[0] for part in parts[1:]]
    results = [t if s == "0" else None for t, s in zip(texts, statuses, strict=False)]
    return (results + [None] * len(stdins))[: len(stdins)]


def passes_tests(
    language_name: str = "python",
    *,
    partial: bool = False,
    limits: sandbox.Limits = sandbox.Limits(),
) -> Reward:
    """Reward of a program by `problem.metadata["tests"]`, a list of (stdin, stdout) pairs.

    Outputs are equal if their lines are, trailing white space aside, and the status must be 0.
    A program's tests share one sandbox: it may see their inputs, but no output.

    Args:
      language_name: see `language`.
      partial: the share of tests passed; if not, 1 for all of them, else 0.
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
        results = run_each(spoken, program, [stdin for stdin, _ in tests], limits)
        passed = sum(
            result is not None and _lines(result) == _lines(expected)
            for result, (_, expected) in zip(results, tests, strict=True)
        )
        correct = float(passed == len(tests))
        return Score(
            passed / len(tests) if partial else correct, {"correct": correct, "format": 1.0}
        )

    return reward


def answers_calls(*, partial: bool = False, limits: sandbox.Limits = sandbox.Limits()) -> Reward:
    """Reward of Python functions by `problem.metadata["calls"]`: (expression, value) pairs.

    Each expression is evaluated after the program in the sandbox, and what it gives comes out as
    a literal (numbers, strings, tuples, lists, dicts, sets), which is compared here.
    """
    spoken = language("python")

    def reward(problem: Problem, completion: str) -> Score:
        program = extract.fenced(completion, "python")
        calls = problem.metadata["calls"]
        if not calls:
            return Score(None, error=f"gold: problem {problem.id!r} has no calls")
        if program is None:
            return Score(0.0, {"correct": 0.0, "format": 0.0})
        values = evaluate(spoken, program, [expression for expression, _ in calls], limits)
        passed = sum(
            value is not None and _same(value[0], expected)
            for value, (_, expected) in zip(values, calls, strict=True)
        )
        correct = float(passed == len(calls))
        return Score(
            passed / len(calls) if partial else correct, {"correct": correct, "format": 1.0}
        )

    return reward


def evaluate(
    spoken: Language, program: str, expressions: Sequence[str], limits: sandbox.Limits
) -> list[tuple[Any] | None]:
    """The value of each expression after the program, in a 1-tuple; None where there is none."""
    mark = secrets.token_hex(8)
    shown = "\n".join(f"    print({mark!r}, {i}, repr({e}))" for i, e in enumerate(expressions))
    source = f"{program}\n\nif True:\n{shown}\n"
    outcome = run(spoken, source, "", limits)
    values: list[tuple[Any] | None] = [None] * len(expressions)
    for line in outcome.stdout.splitlines():
        head, _, rest = line.partition(" ")
        number, _, literal = rest.partition(" ")
        if head == mark and number.isdigit() and int(number) < len(values):
            try:
                values[int(number)] = (ast.literal_eval(literal),)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                values[int(number)] = None
    return values


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


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


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
