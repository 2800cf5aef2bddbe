"""The tasks by name.

get("arithmetic", digits=2)                     a bundled task
get("reasoning_gym/chain_sum", max_digits=2)    any reasoning-gym generator
get("my_package.my_module:make", n=3)           a function of your own that returns a Task
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.data.tasks import parameters
from jaxrl.data.types import Task

BUNDLED: dict[str, str] = {
    "agent_program": "jaxrl.data.environments.bridges.agent_program",
    "apps": "jaxrl.data.environments.work.apps",
    "arithmetic": "jaxrl.data.tasks.math.arithmetic",
    "board_game": "jaxrl.data.environments.games.board_game",
    "boolean": "jaxrl.data.tasks.logic.boolean",
    "bounds": "jaxrl.data.tasks.programs.bounds",
    "calculator": "jaxrl.data.environments.work.calculator",
    "calibrated": "jaxrl.data.tasks.math.calibrated",
    "code": "jaxrl.data.tasks.programs.code",
    "countdown": "jaxrl.data.tasks.math.countdown",
    "database": "jaxrl.data.environments.work.database",
    "diagnosis": "jaxrl.data.environments.games.diagnosis",
    "emotional_support": "jaxrl.data.environments.games.emotional_support",
    "file": "jaxrl.data.tasks.file",
    "format_following": "jaxrl.data.tasks.writing.format_following",
    "fractions": "jaxrl.data.tasks.math.fractions",
    "game24": "jaxrl.data.environments.games.game24",
    "geography": "jaxrl.data.environments.search.geography",
    "gsm8k": "jaxrl.data.tasks.math.gsm8k",
    "guarded": "jaxrl.data.tasks.writing.guarded",
    "html_form": "jaxrl.data.environments.work.html_form",
    "json_output": "jaxrl.data.tasks.writing.json_output",
    "keydoor": "jaxrl.data.environments.games.keydoor",
    "known_facts": "jaxrl.data.tasks.logic.known_facts",
    "ledger": "jaxrl.data.environments.work.ledger",
    "math": "jaxrl.data.tasks.math.math_problems",
    "maze": "jaxrl.data.tasks.logic.maze",
    "micro_ml": "jaxrl.data.tasks.programs.micro_ml",
    "mixture": "jaxrl.data.sources.mixture",
    "multiple_choice": "jaxrl.data.tasks.writing.multiple_choice",
    "next_segment": "jaxrl.data.tasks.writing.next_segment",
    "patches": "jaxrl.data.tasks.programs.patches",
    "planning": "jaxrl.data.environments.search.planning",
    "polyglot": "jaxrl.data.tasks.programs.polyglot",
    "random_calculation": "jaxrl.data.tasks.math.random_calculation",
    "reasoning_gym": "jaxrl.data.tasks.math.reasoning_gym",
    "recall": "jaxrl.data.environments.search.recall",
    "repository": "jaxrl.data.environments.work.repository",
    "retrieval": "jaxrl.data.environments.search.retrieval",
    "revision": "jaxrl.data.environments.work.revision",
    "routing": "jaxrl.data.environments.work.routing",
    "sat": "jaxrl.data.tasks.logic.sat",
    "shortest_path": "jaxrl.data.tasks.logic.shortest_path",
    "sql": "jaxrl.data.tasks.programs.sql",
    "text_arena": "jaxrl.data.environments.bridges.text_arena",
    "text_grid": "jaxrl.data.environments.games.text_grid",
    "text_world": "jaxrl.data.environments.bridges.text_world",
    "translation": "jaxrl.data.tasks.writing.translation",
    "twenty_questions": "jaxrl.data.environments.games.twenty_questions",
    "with_attempts": "jaxrl.data.environments.wrappers.with_attempts",
    "with_compression": "jaxrl.data.environments.wrappers.with_compression",
    "with_tools": "jaxrl.data.environments.wrappers.with_tools",
    "workshop": "jaxrl.data.environments.games.workshop",
    "wrapped": "jaxrl.data.tasks.wrapped",
}
"""Name to module; its function `task(**params) -> Task` makes the task."""

NEED_PARAMETERS = (
    "agent_program", "file", "gsm8k", "math", "mixture", "reasoning_gym", "text_arena",
    "text_world",
)  # fmt: skip
"""Those that have no problems before a file, program, generator or game is named, or without an
extra."""

_FAMILY = {"reasoning_gym": "generator"}  # FAMILY/NAME is get(FAMILY, parameter=NAME)


def is_function(name: str) -> bool:
    """Whether a name is written as MODULE:FUNCTION."""
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def get(name: str, /, **params: Any) -> Task:
    """The task called `name`. Cheap to call, and gives the same task in every process.

    Raises:
      ValueError: an unknown name or parameter, and the message gives the nearest known one; or for
        a parameter of a bundled task, a value of another type.
    """
    family, _, member = name.partition("/")
    if family in _FAMILY and member:
        task = get(family, **{_FAMILY[family]: member}, **params)
        return dataclasses.replace(task, name=name, params=params)
    return _call(name, _maker(name), params)


def takes(name: str, parameter: str) -> bool:
    """Whether the task called `name` has a parameter.

    Raises:
      ValueError: no such task.
    """
    family = name.partition("/")[0]
    task_parameters = inspect.signature(_maker(family if family in _FAMILY else name)).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in task_parameters.values())
    return any_name or parameter in task_parameters


def _maker(name: str) -> Callable[..., Task]:
    """The function that makes the task called `name`."""
    if name in BUNDLED:
        return importlib.import_module(BUNDLED[name]).task
    if not is_function(name):
        raise ValueError(f"task={name!r} is unknown{_nearest(name, BUNDLED)}")
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"task={name!r}: read as MODULE:FUNCTION, but {error}; the function must be "
            "importable and return a jaxrl.data.types.Task"
        ) from error


def within(name: str, args: str | Mapping[str, Any]) -> Task:
    """The task called `name` within another one, which has its parameters as one of its own.

    Args:
      name: of the task.
      args: a JSON object, or a mapping, as a recipe in YAML has it.

    Raises:
      ValueError: not such an object; and as `get`.
    """
    if isinstance(args, str):
        try:
            args = json.loads(args)
        except json.JSONDecodeError as error:
            raise ValueError(f"args={args!r} is no JSON: {error}") from error
    if not isinstance(args, Mapping):
        raise ValueError(f"args={args!r}: give the parameters of {name!r} as a JSON object")
    return get(name, **args)


def _call(name: str, make: Any, params: dict[str, Any]) -> Task:
    task_parameters = inspect.signature(make).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in task_parameters.values()):  # else the task checks
        for field in params:
            if field not in task_parameters:
                raise ValueError(
                    f"task {name!r} has no parameter {field!r}{_nearest(field, task_parameters)}"
                )
    for field, parameter in task_parameters.items():
        required = (
            parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        )
        if required and field not in params:
            raise ValueError(f"task {name!r} needs its parameter {field!r}; give it")
    if name in BUNDLED:
        hints = typing.get_type_hints(make)
        for field, value in params.items():  # a generator checks its own
            if field in task_parameters:
                parameters.check(hints[field], value, field, f"task {name!r}")
    task = make(**params)
    if not isinstance(task, Task):
        raise ValueError(
            f"task={name!r} returned {type(task).__name__}; return a jaxrl.data.types.Task"
        )
    return dataclasses.replace(task, name=name, params=params)


def _nearest(name: str, names: Any) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{hint}; known: {', '.join(names) or 'none'}"
