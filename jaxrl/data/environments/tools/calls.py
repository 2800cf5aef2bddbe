"""Calls of tools, read from JSON and from Python. Nothing that a policy writes raises here: what is
no call is a malformed one."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any, NamedTuple

_DEEPEST = 64  # lists and objects within each other


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]
    """Values that JSON in UTF-8 can hold."""


class Malformed(NamedTuple):
    """A malformed call."""

    text: str


def of_json(text: str) -> Call | Malformed:
    """`{"name": ..., "arguments" or "parameters": {...}}`; arguments may be JSON in a text."""
    try:
        return _of_value(loads(text), text)
    except (ValueError, RecursionError):
        return Malformed(text)


def of_list(text: str) -> list[Call | Malformed]:
    """A JSON list of such objects."""
    try:
        listed = loads(text)
        if isinstance(listed, list):
            return [_of_value(entry, json.dumps(entry)) for entry in listed]
    except (ValueError, RecursionError):
        pass
    return [Malformed(text)]


def _of_value(value: Any, text: str) -> Call | Malformed:
    """The value of such an object; `text` is what is said of a malformed one."""
    try:
        arguments = value["arguments"] if "arguments" in value else value["parameters"]
        arguments = loads(arguments) if isinstance(arguments, str) else arguments
        return of_parts(value["name"], arguments, text)
    except (ValueError, TypeError, KeyError, RecursionError):
        return Malformed(text)


def of_named(name: str, arguments: str) -> Call | Malformed:
    """A name, and JSON of its arguments."""
    try:
        return of_parts(name, loads(arguments), f"{name}{arguments}")
    except (ValueError, RecursionError):
        return Malformed(f"{name}{arguments}")


def of_parts(name: Any, arguments: Any, text: str) -> Call | Malformed:
    """A name and its arguments; `text` is what is said of a malformed call."""
    try:
        if isinstance(name, str) and isinstance(arguments, dict):
            return Call(_plain(name), _plain(arguments))
    except ValueError:
        pass
    return Malformed(text)


def of_python(text: str) -> list[Call | Malformed]:
    """A list of calls of names with literal keyword arguments; they are read and never run."""
    text = text.strip()
    try:
        entries = ast.parse(text, mode="eval").body.elts
    except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError):
        return [Malformed(text)]
    return [_python_call(node) for node in entries]


def _python_call(node: ast.expr) -> Call | Malformed:
    text = "a call that cannot be written out"
    try:
        text = ast.unparse(node)
        if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
            return Malformed(text)
        arguments = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        return of_parts(_dotted(node.func), arguments, text)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return Malformed(text)


def _dotted(node: ast.expr) -> str:
    """The name of a function, such as `text.title`."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise ValueError("it is no name")


_SPELLED = re.compile(r"<(?=[|｜]|/?(?:think|tool_call)>)|\[(?=[A-Z_]+\])")


def dumps(value: Any) -> str:
    """JSON in which no text spells out a mark of a format, as chat templates write it: letters
    beyond ASCII stand as they are, unless UTF-8 cannot hold one."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value)
    return _SPELLED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def loads(text: str) -> Any:
    """The value of a JSON text.

    Raises:
      ValueError: it is none, or has a number that is not finite.
      RecursionError: it is too deep.
    """
    return json.loads(text, parse_constant=_refused)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _plain(value: Any, depth: int = _DEEPEST) -> Any:
    """A value that JSON in UTF-8 can hold; tuples become lists.

    Raises:
      ValueError: it cannot, or is too deep.
    """
    match value:
        case str():
            value.encode()  # refuses half of a surrogate pair
            return value
        case int():
            str(value)  # refuses more digits than Python writes
            return value
        case None:
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple() if depth:
            return [_plain(element, depth - 1) for element in value]
        case dict() if depth and all(isinstance(key, str) for key in value):
            return {_plain(key): _plain(element, depth - 1) for key, element in value.items()}
    raise ValueError(f"{type(value).__name__} is no JSON")
