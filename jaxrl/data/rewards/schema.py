"""Structure: JSON that a schema accepts, and text that a pattern matches."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from jaxrl.data.sources import extract
from jaxrl.data.types import Problem, Reward, Score

_LONGEST = 100_000  # characters of JSON read


def check(text: str, schema: dict[str, Any]) -> tuple[Any, str | None]:
    """The value that strict JSON spells, and why it does not meet the schema, or None.

    Repeated keys, NaN, infinities and anything after the value are refused.

    Raises:
      referencing.exceptions.Unresolvable: the schema refers to what it does not have.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            raise ValueError("a key is repeated")
        return dict(items)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    def finite(text: str) -> float:
        if math.isinf(float(text)):
            raise ValueError(f"{text} is beyond what a number can be")
        return float(text)

    if len(text) > _LONGEST:
        return None, f"parse: longer than {_LONGEST} characters"
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        return None, f"parse: {error}"
    try:
        fault = next(_validator(schema).iter_errors(value), None)
    except (OverflowError, RecursionError) as error:  # too large, or too deep, to compare
        return value, f"schema: {error}"
    return value, None if fault is None else f"schema: {fault.json_path}: {fault.message}"


def _validator(schema: dict[str, Any]) -> Any:
    """The validator of the schema's draft, but with a `uniqueItems` of linear time."""
    import jsonschema
    import referencing

    kind = jsonschema.validators.validator_for(schema)
    extended_kind = jsonschema.validators.extend(kind, {"uniqueItems": unique})
    return extended_kind(schema, registry=referencing.Registry())  # which fetches and opens nothing


def unique(validator: Any, wanted: Any, items: Any, schema: Any) -> Iterator[Any]:
    """The keyword `uniqueItems`, in linear time."""
    import jsonschema

    applies = wanted is True and validator.is_type(items, "array")
    if applies and len({_canonical(item) for item in items}) < len(items):
        yield jsonschema.ValidationError("the items are not unique")


def _canonical(value: Any) -> str:
    """A text that equal values share, and no others: 1 and 1.0 are equal, 1 and true are not."""
    match value:
        case float() if value.is_integer():
            return str(int(value))
        case dict():
            pairs = (f"{json.dumps(k)}:{_canonical(v)}" for k, v in sorted(value.items()))
            return "{" + ",".join(pairs) + "}"
        case list():
            return "[" + ",".join(map(_canonical, value)) + "]"
    return json.dumps(value)


def json_schema(schema: dict[str, Any] | None = None) -> Reward:
    """1 if the completion, or its last fenced block, is JSON that meets the schema.

    Args:
      schema: JSON Schema; None takes `problem.metadata["schema"]`, and any JSON will do where that
        is missing.
    """
    import jsonschema
    from referencing.exceptions import Unresolvable

    if schema is not None:
        jsonschema.validators.validator_for(schema).check_schema(schema)

    def reward(problem: Problem, completion: str) -> Score:
        problem_schema = problem.metadata.get("schema", {}) if schema is None else schema
        text = extract.plain(completion) or ""
        try:
            _, fault = check(extract.fenced(text, "json") or text, problem_schema)
        except Unresolvable as error:
            why = f"the schema refers to {error.ref!r:.200}, which it does not have itself"
            return Score(None, error=f"gold: {why}")
        parsed = fault is None or not fault.startswith("parse")
        return Score(float(fault is None), {"schema": float(fault is None), "json": float(parsed)})

    return reward


def pattern(regex: str, *, whole: bool = True, longest: int = 20_000) -> Reward:
    """1 if the completion matches a pattern, white space at its ends aside.

    Args:
      regex: with `.` matching line ends too. Beware of patterns that backtrack without bound: score
        those in a pool, whose time limit ends them.
      whole: the whole completion must match, or else a part of it.
      longest: characters; a longer completion scores 0.
    """
    compiled = re.compile(regex, re.DOTALL)
    match = compiled.fullmatch if whole else compiled.search

    def reward(problem: Problem, completion: str) -> Score:
        text = completion.strip()
        return Score(float(len(text) <= longest and match(text) is not None))

    return reward


def think_answer() -> Reward:
    """1 for `<think>...</think><answer>...</answer>`, each tag once and nothing outside."""
    inner = r"(?:(?!</?think>|</?answer>).)"
    return pattern(rf"<think>{inner}+</think>\s*<answer>{inner}+</answer>")
