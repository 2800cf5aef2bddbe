"""JSON schemas of tools: of which type an argument is meant to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl.data.environments.tools.calls import loads

_DEEPEST = 16  # schemas within each other
_STEPS = 100_000  # of one value: schemas that are read for it and values that are compared
_BRANCHES = ("anyOf", "oneOf", "allOf")
_WORDS = {"True": True, "False": False, "None": None}  # as templates write them
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parameters(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The schema of a tool's arguments; empty where there is none.

    Args:
      tools: schemas of tools, as in `Opening.tools`.
      name: of the tool.
    """
    functions = (_object(tool, "function") or tool for tool in tools)
    schema = next((function for function in functions if function.get("name") == name), {})
    return _object(schema, "parameters")


def typed(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """The value of an argument that is written as bare text, without a type.

    It is JSON of a type that the schema allows, or else the text; a text that may only be a string
    is never read as something else. Where the schema does not say, it is JSON if it can be.

    Args:
      text: of the value.
      schema: of all arguments, see `parameters`.
      name: of the argument.
    """
    kinds = _kinds(_object(schema, "properties").get(name), schema)
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        value = text
    if kinds is None:
        return value
    value = _WORDS.get(text.strip(), value)
    fits = any(_KINDS[kind](value) for kind in kinds if kind != "string")
    return value if fits else text


def fitted(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """A value that a schema allows, with numbers of the type that it names.

    JSON has one type of number and Python has two: `2.0` is an integer to a schema, and becomes 2.

    Args:
      value: that fits the schema.
      schema: of the value.
      root: which its references are within.

    Raises:
      ValueError: a number that no float can hold, or a schema with too much to compare.
    """
    return _Fitter(root).fit(value, schema, _DEEPEST)


class _Fitter:
    """Fits a value to schemas, in a bounded number of steps."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, _STEPS

    def fit(self, value: Any, schema: Any, depth: int) -> Any:
        """See `fitted`; `depth` schemas within each other are read."""
        self._spend(1)
        if not isinstance(schema, Mapping) or not depth:
            return value
        if isinstance(reference := schema.get("$ref"), str):
            return self.fit(value, _referred(reference, self._root), depth - 1)
        if _number(value):
            return self._fit_number(value, schema)
        for branch in (subschema for key in _BRANCHES for subschema in _list(schema, key)):
            value = self.fit(value, branch, depth - 1)
        if isinstance(value, list):
            first, rest = _list(schema, "prefixItems"), schema.get("items")
            kinds = [*first, *[rest] * (len(value) - len(first))]
            return [self.fit(*pair, depth - 1) for pair in zip(value, kinds, strict=False)]
        if isinstance(value, dict):
            properties, rest = _object(schema, "properties"), schema.get("additionalProperties")
            return {k: self.fit(v, properties.get(k, rest), depth - 1) for k, v in value.items()}
        return value

    def _fit_number(self, value: int | float, schema: Mapping[str, Any]) -> int | float:
        read: dict[int, set[str] | None] = {}
        kinds, values = _kinds(schema, self._root, read) or set(), _values(schema)
        self._spend(len(read) + len(values))
        if value in values:
            return values[values.index(value)]
        if "integer" in kinds and "number" not in kinds and _KINDS["integer"](value):
            return int(value)
        if "number" in kinds and "integer" not in kinds:
            try:
                return float(value)
            except OverflowError:
                raise ValueError("a number is too large") from None
        return value

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise ValueError("the arguments are too involved for the schema of the tool")


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """Those that a schema lists."""
    return [schema["const"]] if "const" in schema else _list(schema, "enum")


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    entry = value.get(key)
    return entry if isinstance(entry, list) else []


def _object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    entry = value.get(key)
    return entry if isinstance(entry, Mapping) else {}


def _kinds(
    schema: Any, root: Mapping[str, Any], kinds_by_id: dict[int, set[str] | None] | None = None
) -> set[str] | None:
    """The JSON types that a schema allows; None: it does not say."""
    kinds_by_id = {} if kinds_by_id is None else kinds_by_id
    if not isinstance(schema, Mapping):
        return None
    if id(schema) not in kinds_by_id:
        kinds_by_id[id(schema)] = None  # while it is read, as it may refer to itself
        kinds_by_id[id(schema)] = _named(schema, root, kinds_by_id)
    return kinds_by_id[id(schema)]


def _named(
    schema: Mapping[str, Any], root: Mapping[str, Any], kinds_by_id: dict[int, set[str] | None]
) -> set[str] | None:
    if isinstance(reference := schema.get("$ref"), str):
        return _kinds(_referred(reference, root), root, kinds_by_id)
    if isinstance(type_keyword := schema.get("type"), str | list):
        kinds = [type_keyword] if isinstance(type_keyword, str) else type_keyword
        return {kind for kind in kinds if isinstance(kind, str) and kind in _KINDS} or None
    if values := _values(schema):
        return {kind for kind, fits in _KINDS.items() if any(map(fits, values))} or None
    for key in _BRANCHES:
        if branches := _list(schema, key):
            branch_kinds = [_kinds(branch, root, kinds_by_id) for branch in branches]
            return None if None in branch_kinds else set().union(*branch_kinds)
    return None


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference such as `#/$defs/Colour` names."""
    node: Any = root
    for key in reference.removeprefix("#/").split("/"):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node
