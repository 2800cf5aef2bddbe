"""A small repository with a bug to repair: its tests are some that fail and some that must go on to
pass, run in the sandbox and compared outside of it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import json
import random
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.environments.tools import definition
from jaxrl.data.environments.tools.definition import Tool, tool
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.sandbox import runner
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

_EVALUATE = """
import importlib, json, sys
given = json.load(sys.stdin)
sys.path.insert(0, ".")
for i, expression in enumerate(given["expressions"]):
    try:
        module = importlib.import_module(expression.partition(".")[0])
        value = repr(eval(expression, {module.__name__: module}))
    except BaseException as error:
        value = None
        if given["explain"]:
            print(f"{type(error).__name__}: {error}")
    print(given["mark"], i, value, flush=True)
"""


class _Bug(NamedTuple):
    old: str
    """A piece of the source."""
    new: str
    """What stands in its place."""
    value: Callable[..., Any]
    """What the function then gives; see `_Function.value`."""


class _Function(NamedTuple):
    module: str
    name: str
    source: str
    value: Callable[..., Any]
    """`(functions of the repository by name, *arguments) -> value`: what the source says."""
    bugs: tuple[_Bug, ...]
    arguments: Callable[[random.Random], tuple[Any, ...]]


def _numbers(stream: random.Random) -> tuple[list[int]]:
    return ([stream.randint(1, 30) for _ in range(stream.randint(2, 5))],)


def _words(stream: random.Random) -> tuple[str]:
    words = ["red", "tall", "old", "box", "hill", "tree"]
    return (" ".join(stream.sample(words, stream.randint(2, 4))),)


FUNCTIONS = (
    _Function(
        "numbers_", "mean", "def mean(values):\n    return sum(values) / len(values)\n",
        lambda f, values: sum(values) / len(values),
        (
            _Bug("/ len(values)", "// len(values)", lambda f, v: sum(v) // len(v)),
            _Bug("len(values)", "(len(values) - 1)", lambda f, v: sum(v) / (len(v) - 1)),
        ),
        _numbers,
    ),
    _Function(
        "numbers_", "spread", "def spread(values):\n    return max(values) - min(values)\n",
        lambda f, values: max(values) - min(values),
        (
            _Bug("- min(values)", "- values[0]", lambda f, v: max(v) - v[0]),
            _Bug("max(values)", "values[-1]", lambda f, v: v[-1] - min(v)),
        ),
        _numbers,
    ),
    _Function(
        "numbers_", "running",
        "def running(values):\n    total, out = 0, []\n    for value in values:\n"
        "        total += value\n        out.append(total)\n    return out\n",
        lambda f, values: list(itertools.accumulate(values)),
        (
            _Bug("total += value", "total = value", lambda f, v: list(v)),
            _Bug("append(total)", "append(value)", lambda f, v: list(v)),
        ),
        _numbers,
    ),
    _Function(
        "text", "title",
        "def title(words):\n    return ' '.join(w.capitalize() for w in words.split())\n",
        lambda f, words: " ".join(w.capitalize() for w in words.split()),
        (
            _Bug("' '.join", "''.join", lambda f, t: "".join(w.capitalize() for w in t.split())),
            _Bug("w.capitalize()", "w.upper()", lambda f, t: t.upper()),
        ),
        _words,
    ),
    _Function(
        "text", "initials",
        "def initials(words):\n    return ''.join(w[0] for w in words.split())\n",
        lambda f, words: "".join(w[0] for w in words.split()),
        (
            _Bug("w[0]", "w[-1]", lambda f, t: "".join(w[-1] for w in t.split())),
            _Bug("words.split()", "words", lambda f, t: t),
        ),
        _words,
    ),
    _Function(
        "lists", "chunks",
        "def chunks(items, size):\n"
        "    return [items[i : i + size] for i in range(0, len(items), size)]\n",
        lambda f, items, size: [items[i : i + size] for i in range(0, len(items), size)],
        (
            _Bug("i + size]", "size]", lambda f, v, n: [v[i:n] for i in range(0, len(v), n)]),
            _Bug("range(0,", "range(1,", lambda f, v, n: [v[i:i + n] for i in range(1, len(v), n)]),
        ),
        lambda stream: (*_numbers(stream), stream.randint(1, 3)),
    ),
    _Function(
        "lists", "rotate",
        "def rotate(items, n):\n    n %= len(items)\n    return items[n:] + items[:n]\n",
        lambda f, items, n: items[n % len(items) :] + items[: n % len(items)],
        (
            _Bug("+ items[:n]", "+ items[n:]", lambda f, v, n: v[n % len(v) :] * 2),
            _Bug("n %= len(items)", "n %= 2", lambda f, v, n: v[n % 2 :] + v[: n % 2]),
        ),
        lambda stream: (*_numbers(stream), stream.randint(1, 9)),
    ),
    _Function(
        "report", "line",
        "from numbers_ import mean\nfrom text import title\n\n\n"
        "def line(words, values):\n    return f'{title(words)}: {mean(values)}'\n",
        lambda f, words, values: f"{f['title'](words)}: {f['mean'](values)}",
        (
            _Bug("{title(words)}", "{words}", lambda f, t, v: f"{t}: {f['mean'](v)}"),
            _Bug("{mean(values)}", "{values}", lambda f, t, v: f"{f['title'](t)}: {v}"),
        ),
        lambda stream: (*_words(stream), *_numbers(stream)),
    ),
)  # fmt: skip
_BY_NAME = {function.name: function for function in FUNCTIONS}
Case = tuple[str, tuple[Any, ...]]
"""Name and arguments of a function."""
_CASES = 3  # of each function


@dataclasses.dataclass
class _Checkout:
    problem: Problem
    files: dict[str, str]
    tools: Sequence[Tool]
    left: int
    """Turns with calls that are left."""


def task(calls: int = 8, bugs: int = 1, ood_bugs: int | None = None, role: str = "tool") -> Task:
    """Repositories of four modules in which one function or more is broken.

    The reward is 1 if, after a turn without a call, every test passes: those that failed before and
    those that did not.

    Args:
      calls: turns with calls that an episode may have; one more ends it with reward 0.
      bugs: functions that are broken in train and test.
      ood_bugs: in the ood split; None means one more than `bugs`.
      role: of the messages that give results; `user` where the chat template knows no `tool`.
    """
    ood_bugs = bugs + 1 if ood_bugs is None else ood_bugs
    if not 1 <= bugs < ood_bugs <= len(FUNCTIONS):
        raise ValueError(
            f"bugs={bugs}, ood_bugs={ood_bugs}: need 1 <= bugs < ood_bugs <= {len(FUNCTIONS)}"
        )
    if calls < 1:
        raise ValueError(f"calls={calls}: allow one or more")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_bugs if split == "ood" else bugs
        stream = generate.rng("repository", split, seed, index)
        broken, cases = generate.draw(
            lambda stream: _drawn(stream, count), key=repr, stream=stream, split=split
        )
        files, tests = _files(broken), [_spelled(case) for case in cases]
        expected, actual = _values({}, cases), _values(broken, cases)
        failing = [i for i, (a, b) in enumerate(zip(expected, actual, strict=True)) if a != b]
        first = failing[0]
        prompt = (
            f"{tests[first]} should give {expected[first]!r}, but gives {actual[first]!r}. Repair "
            f"the code; there may be more tests that fail. Files: {', '.join(sorted(files))}"
        )
        return generate.user_problem(
            "repository", repr((broken, cases)), prompt, expected,
            files=files, cases=tests, failing=failing, broken=broken,
        )  # fmt: skip

    def begin(problem: Problem, seed: int) -> tuple[_Checkout, Opening]:
        files = dict(problem.metadata["files"])
        checkout = _Checkout(problem, files, _tools(files), calls)
        messages = ({"role": "user", "content": problem.prompt},)
        return checkout, Opening(messages, tools=tuple(tool.schema for tool in checkout.tools))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        edits = []
        for name, bug in problem.metadata["broken"].items():
            function = _BY_NAME[name]
            arguments = {
                "path": f"{function.module}.py",
                "old": _broken(function, bug),
                "new": function.source,
            }
            edits.append(write_call(Call("edit", arguments)))
        return (*edits, "done")

    def step(checkout: _Checkout, action: str) -> Reply:
        outputs = definition.results(checkout.tools, action)
        if outputs and checkout.left:
            checkout.left -= 1
            messages = ({"role": role, "content": definition.joined(outputs)},)
            return Reply(messages, calls=len(outputs))
        if outputs:
            return Reply(reward=0.0, done=True, calls=len(outputs))
        return _judged(checkout)

    task = Task(
        name="repository",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII,
        description=__doc__,
        sandboxed=True,
        turns=Environment(begin, step, roles=(role,), gold=gold, tools=True, seconds=_seconds),
    )
    return task


def _drawn(stream: random.Random, count: int) -> tuple[dict[str, int], list[Case]]:
    """Number of the bug by the function that has it, and cases, of which each bug fails some."""
    while True:
        chosen = stream.sample(FUNCTIONS, count)
        broken = {function.name: stream.randrange(len(function.bugs)) for function in chosen}
        cases = [(f.name, f.arguments(stream)) for f in FUNCTIONS for _ in range(_CASES)]
        right = _values({}, cases)
        if all(_values({name: bug}, cases) != right for name, bug in broken.items()):
            return broken, cases


def _broken(function: _Function, bug: int) -> str:
    """The source of a function with a bug."""
    return function.source.replace(function.bugs[bug].old, function.bugs[bug].new, 1)


def _spelled(case: Case) -> str:
    name, arguments = case
    return f"{_BY_NAME[name].module}.{name}({', '.join(map(repr, arguments))})"


def _files(broken: Mapping[str, int]) -> dict[str, str]:
    """The repository, with bugs."""
    files: dict[str, str] = {}
    for function in FUNCTIONS:
        source = (
            _broken(function, broken[function.name]) if function.name in broken else function.source
        )
        path = f"{function.module}.py"
        files[path] = f"{files[path]}\n\n{source}" if path in files else source
    return files


def _values(broken: Mapping[str, int], cases: Sequence[Case]) -> list[Any]:
    """What the cases give in the repository with bugs."""
    functions: dict[str, Callable[..., Any]] = {}
    for function in FUNCTIONS:
        value = (
            function.bugs[broken[function.name]].value
            if function.name in broken
            else function.value
        )
        functions[function.name] = functools.partial(value, functions)
    return [functions[name](*arguments) for name, arguments in cases]


def _seconds(problem: Problem, action: str) -> float:
    """That a turn may take: each call may run the tests once, and so does the end."""
    runs = max(1, definition.count(action))
    return runs * (runner.Limits().wall_s + runner.START_S)


def _run(files: Mapping[str, str], cases: Sequence[str], explain: bool) -> tuple[str, list[Any]]:
    """What cases print, and give, in the sandbox; None where they give no literal."""
    mark = secrets.token_hex(8)
    request = {"mark": mark, "expressions": list(cases), "explain": explain}
    outcome = runner.run(
        [sys.executable, *runner.ALIKE, "evaluate.py"],
        files={**files, "evaluate.py": _EVALUATE},
        stdin=json.dumps(request),
    )
    values: list[Any] = [None] * len(cases)
    printed = []
    for line in outcome.stdout.splitlines():
        head, _, rest = line.partition(" ")
        number, _, literal = rest.partition(" ")
        if head != mark:
            printed.append(line)
        elif number.isdecimal() and int(number) < len(cases):
            try:
                values[int(number)] = ast.literal_eval(literal)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                values[int(number)] = None
    if outcome.end != "exit":
        printed.append(f"ended for its {outcome.end}")
    return "\n".join([*printed, *(repr(v) for v in values if v is not None)]), values


def _judged(checkout: _Checkout) -> Reply:
    expected, metadata = checkout.problem.answer, checkout.problem.metadata
    _, values = _run(checkout.files, metadata["cases"], False)
    passed = [type(a) is type(b) and a == b for a, b in zip(values, expected, strict=True)]
    fail_to_pass = [passed[i] for i in metadata["failing"]]
    pass_to_pass = [ok for i, ok in enumerate(passed) if i not in metadata["failing"]]
    parts = {
        "fail_to_pass": sum(fail_to_pass) / len(fail_to_pass),
        "pass_to_pass": sum(pass_to_pass) / max(len(pass_to_pass), 1),
    }
    return Reply(reward=float(all(passed)), parts=parts, done=True)


def _tools(files: dict[str, str]) -> list[Tool]:
    """What the policy may do with the files, which it changes."""

    def read_file(path: str) -> str:
        if path not in files:
            raise ValueError(f"there is no file {path!r}; there are {', '.join(sorted(files))}")
        return files[path]

    def read(path: str) -> str:
        """Shows a file.

        Args:
          path: its name.
        """
        return read_file(path)

    def edit(path: str, old: str, new: str) -> str:
        """Replaces a piece of a file, which must occur in it once.

        Args:
          path: of the file.
          old: the piece.
          new: in place of it.
        """
        count = read_file(path).count(old) if old else 0
        if count != 1:
            raise ValueError(f"old occurs {count} times in {path}, not once")
        changed = files[path].replace(old, new)
        if len(changed) > 1 << 14:
            raise ValueError("the file would have more than 16384 characters")
        files[path] = changed
        return "changed"

    def run(expression: str) -> str:
        """Evaluates an expression such as text.title('a b') with the files as they are.

        Args:
          expression: begins with the name of a module.
        """
        return _run(files, [expression], True)[0] or "None"

    return [tool(read), tool(edit), tool(run)]
