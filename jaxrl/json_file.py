"""Reading JSON files of a run, whose faults are told with the name of the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DEEPEST = 100
"""Lists and objects within each other in a file, which are read recursively."""
LARGEST = 1 << 28
"""Bytes of a file, which is in memory as a whole."""
_PIECE = 1 << 20  # bytes; a reader makes room for all that it is asked for


def read(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it does not hold an object; the message names the file.
    """
    if not path.is_file() and path.exists():  # a pipe or a device would be waited for
        raise ValueError(f"{path} is damaged: it is no regular file; restore it from a copy")
    try:
        value = json.loads(text(path, LARGEST))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; restore it from a copy") from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ValueError(f"{path} is damaged: it holds a {kind}; restore it from a copy")
    if is_deep(value):
        raise ValueError(
            f"{path} is damaged: over {DEEPEST} lists and objects are within each other; restore "
            "it from a copy"
        )
    return value


def text(path: Path, most: int = sys.maxsize) -> str:
    """The text of a file, with no NUL in it: no JSON has any, and a hole of any size reads as them.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it has a NUL or over `most` bytes, or is not UTF-8.
    """
    content = bytearray()
    with path.open("rb") as file:
        while len(content) <= most and (piece := file.read(_PIECE)):
            if b"\0" in piece:
                raise ValueError(f"byte {len(content) + piece.index(0)} of it is NUL")
            content += piece
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return content.decode("utf-8")


def is_deep(value: Any) -> bool:
    """Whether over `DEEPEST` lists and objects of a JSON value are within each other."""
    level = [value]
    for _ in range(DEEPEST):
        level = [node for node in level if isinstance(node, dict | list)]
        level = [x for node in level for x in (node.values() if isinstance(node, dict) else node)]
    return any(isinstance(node, dict | list) for node in level)


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
