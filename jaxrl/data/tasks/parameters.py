"""Whether the value of a task's parameter has the type that the parameter is annotated with."""

from __future__ import annotations

import collections.abc
import numbers
import types
import typing
from typing import Any

_NEEDED = {
    int: "a whole number, such as 3",
    float: "a number, such as 0.5",
    bool: "true or false",
    str: "a text, in quotes such as '\"7\"'",
    collections.abc.Mapping: "a mapping",
    types.NoneType: "null",
}
"""What an error says of a type. Values of parameters with other types are not checked."""

_NUMBERS = {int: numbers.Integral, float: numbers.Real}  # those of NumPy too


def check(hint: Any, value: Any, field: str, of: str) -> None:
    """Refuse a value of another type than the parameter's.

    Args:
      hint: the type that the parameter is annotated with.
      value: given for it.
      field: name of the parameter.
      of: what has the parameter, for the error.

    Raises:
      ValueError: naming the parameter, the value and what is needed.
    """
    hint_kinds = kinds(hint)
    if all(kind in _NEEDED for kind in hint_kinds) and not any(
        _is(value, kind) for kind in hint_kinds
    ):
        needed = " or ".join(_NEEDED[kind] for kind in hint_kinds if kind is not types.NoneType)
        raise ValueError(f"{field}={value!r}: {of} needs {needed}")


def kinds(hint: Any) -> list[Any]:
    """The types that a value may have; of a choice among literals, those of the literals."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(hint) for kind in kinds(part)]
    if typing.get_origin(hint) is typing.Literal:
        return list(dict.fromkeys(type(value) for value in typing.get_args(hint)))
    return [typing.get_origin(hint) or hint]


def _is(value: Any, kind: type) -> bool:
    if kind is bool:
        return isinstance(value, bool) or (_is(value, int) and value in (0, 1))
    if isinstance(value, bool):
        return False
    return isinstance(value, _NUMBERS.get(kind, kind))
