"""The OpenAI protocol, constrained output: from fields of a body to what a completion must match.

`response_format` and `tool_choice` are OpenAI's, `structured_outputs` and `guided_*` those of vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.data.text import messages
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.sampling import constraints
from jaxrl.types import Kind, OutputConstraint

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_SCHEMA: Json = {"type": ["object", "string", "boolean"]}
_CHOICES: Json = {"type": "array", "items": _TEXT, "minItems": 1}
_OBJECT = '{"type": "object"}'
FIELDS: Json = {
    "response_format": {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {"type": "object", "properties": {"schema": _SCHEMA}},
        },
    },
    "structured_outputs": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {
            "json": _SCHEMA, "regex": _TEXT, "choice": _CHOICES, "grammar": _TEXT,
            "json_object": {"const": True},
        },
    },
    "guided_json": _SCHEMA,
    "guided_regex": _TEXT,
    "guided_choice": _CHOICES,
    "guided_grammar": _TEXT,
}  # fmt: skip
"""Of a body, with their schemas."""
TOOL_CHOICE: Json = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
            },
        },
    ]
}
_KINDS: Mapping[str, Kind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
_CALL = re.compile(r'<tool_call>\n\{"name": "probe", "arguments": \{"a": "b"\}\}\n</tool_call>')


def constraint(body: Json, tokenizer: Tokenizer) -> OutputConstraint | None:
    """What completions of a body must match; None: nothing.

    Raises:
      ValueError: two of its fields constrain them, or a tool cannot be called.
    """
    by_field = dict(_of_fields(body))
    if (calls := _calls(body, tokenizer)) is not None:
        by_field[calls[0]] = calls[1]
    if len(by_field) > 1:
        raise ValueError(
            f"{' and '.join(by_field)}: each says what the whole completion must be; send one"
        )
    return next(iter(by_field.values()), None)


def _of_fields(body: Json) -> list[tuple[str, OutputConstraint]]:
    """Those that fields ask for, by their names."""
    listed = []
    response = body.get("response_format", {"type": "text"})
    if response["type"] == "json_object":
        listed.append(("response_format", OutputConstraint("json_schema", _OBJECT)))
    elif response["type"] == "json_schema":
        schema = response.get("json_schema", {}).get("schema")
        if schema is None:
            raise ValueError("response_format.json_schema.schema is missing; give the JSON schema")
        listed.append(("response_format", _one("json", schema)))
    for kind, value in body.get("structured_outputs", {}).items():
        listed.append(("structured_outputs", _one(kind, value)))
    for kind in _KINDS:
        if (value := body.get(f"guided_{kind}")) is not None:
            listed.append((f"guided_{kind}", _one(kind, value)))
    return listed


def _one(kind: str, value: Any) -> OutputConstraint:
    if kind == "json_object":
        return OutputConstraint("json_schema", _OBJECT)
    text = value if isinstance(value, str) else json.dumps(value)
    return OutputConstraint(_KINDS[kind], text)


def _calls(body: Json, tokenizer: Tokenizer) -> tuple[str, OutputConstraint] | None:
    """The field that constrains calls of tools, and how; None: none does."""
    choice, offered = body.get("tool_choice", "auto"), body.get("tools", [])
    functions = [tool["function"] for tool in offered]
    strict = [function["name"] for function in functions if function.get("strict")]
    if choice == "none" or (choice == "auto" and not strict):
        return None
    field = "tools.strict" if choice == "auto" else "tool_choice"
    if not functions:
        raise ValueError(f"tool_choice={choice!r:.100} needs tools; send some, or leave it out")
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        functions = [function for function in functions if function["name"] == name]
        if not functions:
            names = [tool["function"]["name"] for tool in offered]
            raise ValueError(f"tool_choice names {name!r:.100}; tools has {names!r:.200}")
    if not writes_hermes(tokenizer):
        raise ValueError(
            f"{field} takes a chat template that writes calls as <tool_call>, a line with "
            '{"name": ..., "arguments": {...}} and </tool_call>, as those of Hermes and Qwen do; '
            "this model's writes them in another way or not at all; leave it out"
        )
    schemas = {
        function["name"]: _arguments(function, choice != "auto" or function["name"] in strict)
        for function in functions
    }
    many = body.get("parallel_tool_calls", True) and not isinstance(choice, dict)
    return field, constraints.tools(schemas, required=choice != "auto", many=many)


def _arguments(function: Json, strict: bool) -> Json:
    """The schema of a tool's arguments, which are an object."""
    schema = function.get("parameters", {}) if strict else {}
    if schema.get("type", "object") != "object":
        raise ValueError(
            f"tools.{function['name']}.parameters.type={schema['type']!r:.100}: arguments of a "
            "call are an object; make it 'object'"
        )
    return {"type": "object", **schema}


def writes_hermes(tokenizer: Tokenizer) -> bool:
    """Whether the chat template writes calls of tools in the form of Hermes and Qwen."""
    if tokenizer.render is None:
        return False
    call = {"type": "function", "function": {"name": "probe", "arguments": {"a": "b"}}}
    turns: Sequence[Json] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    try:
        text = tokenizer.render([messages.normal(turn, strict=False) for turn in turns]).text
    except Exception:  # a template may fail in any way on what it did not foresee
        return False
    return _CALL.search(text) is not None
