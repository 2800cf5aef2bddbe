"""Whether the arguments of a call fit the JSON schema of its tool.

A policy writes the arguments, and a tool of an MCP server or of a data set brings its schema. So a
check reads nothing but the schema, takes little time, and fails with an error for the policy. What
cannot be checked that way is left to the tool: regular expressions, which are JavaScript's and may
take exponential time, and references to what the schema does not have.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxrl.data.rewards.schema import unique

_REFERENCES = 4000
"""That one check may follow; a schema that refers to itself could take exponential time."""
_STEPS = 100_000
"""Of one check: keywords that are applied, entries of what they compare with, and 64 characters of
an error. Branches within branches, each of them compared with every item of a list, could take
hours."""
_LEFT = threading.local()


def check_schema(parameters: Any) -> None:
    """Refuse what is no schema of arguments.

    Raises:
      ValueError: what is wrong, and where.
    """
    _validator(_text(parameters))


def check(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit a schema, or that cannot be compared with it.

    Raises:
      ValueError: the reason, for the policy.
    """
    import jsonschema

    validator = _validator(_text(parameters))
    _LEFT.references, _LEFT.steps = _REFERENCES, _STEPS
    try:
        error = jsonschema.exceptions.best_match(validator.iter_errors(arguments))
    except Exception as fault:  # numbers too large, nesting too deep, whatever a schema leads to
        raise ValueError(f"the arguments cannot be checked: {fault}") from fault
    if error is not None:
        raise ValueError(error.message)


def _text(parameters: Any) -> str:
    try:
        return json.dumps({"type": "object", **parameters}, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"parameters={parameters!r:.100} are no JSON schema: {error}") from error


@functools.lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    import jsonschema
    import referencing

    schema = json.loads(text)
    drafts = [jsonschema.Draft202012Validator, jsonschema.Draft4Validator]  # OpenAPI 3.0 writes 4
    if isinstance(schema.get("$schema"), str):
        drafts = [jsonschema.validators.validator_for(schema, drafts[0])]
    faults = [_fault(draft, schema) for draft in drafts]
    if None not in faults:
        raise ValueError(f"parameters={text:.100} are no JSON schema: {faults[0]}")
    draft = drafts[faults.index(None)]
    validators = draft.VALIDATORS
    keywords = {
        "pattern": _unchecked,
        "patternProperties": _unchecked,
        "unevaluatedProperties": _unchecked,
        "unevaluatedItems": _unchecked,
        "additionalProperties": _additional(validators["additionalProperties"]),
        "uniqueItems": unique,
        **{
            key: _followed(validators[key])
            for key in validators
            if key.endswith("Ref") or key == "$ref"
        },
    }
    counted = {key: _counted(keyword) for key, keyword in {**validators, **keywords}.items()}
    return jsonschema.validators.extend(draft, counted)(schema, registry=referencing.Registry())


def _fault(draft: Any, schema: Mapping[str, Any]) -> str | None:
    """Why a schema is none of a draft; None: it is one."""
    import jsonschema

    try:
        errors = draft(draft.META_SCHEMA).iter_errors(schema)  # whose regular expressions are known
        error = jsonschema.exceptions.best_match(errors)
    except RecursionError:
        return "it is too deep"
    return error and f"{'.'.join(map(str, error.absolute_path))}: {error.message:.200}"


Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]
"""`(validator, value, instance, schema) -> errors`."""


def _counted(keyword: Keyword) -> Keyword:
    """A keyword whose work counts, see `_STEPS`."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _spend(1 + (len(value) if isinstance(value, list | dict) else 0))
        for error in keyword(validator, value, instance, schema) or ():
            _spend(len(error.message) // 64)
            yield error

    return check


def _spend(steps: int) -> None:
    _LEFT.steps -= steps
    if _LEFT.steps < 0:
        raise ValueError("they are too involved for the schema of the tool")


def _unchecked(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    """A keyword that is not checked."""


def _additional(keyword: Keyword) -> Keyword:
    """Beside names by a pattern, it cannot be told which are additional."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from keyword(validator, value, instance, schema) or ()

    return check


def _followed(keyword: Keyword) -> Keyword:
    """A reference, which is left unchecked where it leads out of the schema."""
    from referencing.exceptions import Unresolvable

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _LEFT.references -= 1
        if _LEFT.references < 0:
            raise ValueError("they are too involved for the schema of the tool")
        try:
            yield from keyword(validator, value, instance, schema) or ()
        except Unresolvable:
            return

    return check
