"""Reading JSON files of a run, whose faults are told with the name of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it does not hold an object; the message names the file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; restore it from a copy") from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ValueError(f"{path} is damaged: it holds a {kind}; restore it from a copy")
    return value


def field(path: Path, name: str) -> dict[str, Any]:
    """A field of the object that a file holds, which is an object itself.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it has no such field.
    """
    value = read(path).get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it has no field {name!r}; restore it from a copy")
    return value
