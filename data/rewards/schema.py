"""Structure: JSON that a schema accepts, and text that a pattern matches."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

from data import extract
from data.types import Problem, Reward, Score

_LONGEST = 100_000  # characters of JSON read


def check(text: str, schema: dict[str, Any]) -> tuple[Any, str | None]:
    """The value that strict JSON spells, and why it does not meet the schema, or None.

    Repeated keys, NaN, infinities and anything after the value are refused.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            raise ValueError("a key is repeated")
        return dict(items)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    if len(text) > _LONGEST:
        return None, f"parse: longer than {_LONGEST} characters"
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        return None, f"parse: {error}"
    fault = jsonschema.exceptions.best_match(
        jsonschema.validators.validator_for(schema)(schema).iter_errors(value)
    )
    return value, None if fault is None else f"schema: {fault.json_path}: {fault.message}"


def json_schema(schema: dict[str, Any] | None = None) -> Reward:
    """1 if the completion, or its last fenced block, is JSON that meets the schema.

    Args:
      schema: JSON Schema; None takes `problem.metadata["schema"]`.
    """
    if schema is not None:
        jsonschema.validators.validator_for(schema).check_schema(schema)

    def reward(problem: Problem, completion: str) -> Score:
        wanted = problem.metadata["schema"] if schema is None else schema
        text = extract.plain(completion) or ""
        _, fault = check(extract.fenced(text, "json") or text, wanted)
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
