"""What tasks there are, as rows for a table or for a machine."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from jaxrl.data import tasks


def rows() -> list[dict[str, Any]]:
    """One row a bundled task, JSON-able.

    Keys: `name`; `description`, a sentence; `parameters`, by name a dict of `type`, `default`
    (absent if it must be given) and `help`; `splits` and `sizes` with default parameters (both
    empty for a task that has none before a file or generator is named; a split without a size is
    endless); `turns`, whether an environment answers the policy; `generators`, the names that NAME
    in `reasoning_gym/NAME` can be, else empty.
    """
    return [_row(name) for name in sorted(tasks.BUNDLED)]


def _row(name: str) -> dict[str, Any]:
    module = importlib.import_module(tasks.BUNDLED[name])
    task = None if name in tasks.NEED_PARAMETERS else tasks.get(name)
    played = ".environments." in tasks.BUNDLED[name]
    turns = played if task is None else task.turns is not None
    return {
        "name": name,
        "description": _summary(task.description if task else module.__doc__),
        "parameters": _parameters(module.task),
        "splits": list(task.splits) if task else [],
        "sizes": dict(task.sizes) if task else {},
        "turns": turns,
        "generators": sorted(getattr(module, "DATASETS", ())),
    }


def _summary(text: str | None) -> str:
    """The first sentence of a docstring."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _parameters(function: Any) -> dict[str, dict[str, Any]]:
    helps = _helps(inspect.getdoc(function) or "")
    parameters: dict[str, dict[str, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        row: dict[str, Any] = {"type": str(parameter.annotation)}
        if parameter.default is not parameter.empty:
            row["default"] = parameter.default
        parameters[parameter.name] = row | {"help": helps.get(parameter.name, "")}
    return parameters


def _helps(doc: str) -> dict[str, str]:
    """Name to text of a docstring's `Args:` section."""
    texts: dict[str, str] = {}
    name = ""
    for line in doc.partition("Args:\n")[2].splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 2 and ": " in line:
            name, _, text = line.strip().partition(": ")
            texts[name] = text
        elif indent > 2 and name:
            texts[name] += " " + line.strip()
        else:
            break
    return texts
