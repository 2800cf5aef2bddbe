"""Tools that a policy calls in the format of Hermes and Qwen: JSON between two tags.

<tool_call>
{"name": "calculator", "arguments": {"expression": "2 + 3"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jsonschema

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LONGEST = 4000  # characters of one result


class Tool(NamedTuple):
    """Something that the policy may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, which are an object."""
    run: Callable[..., str]
    """Called with the arguments by name. A ValueError that it raises is told to the policy."""


def instructions(tools: Sequence[Tool]) -> str:
    """A system message that says which tools there are and how they are called."""
    listed = "\n".join(
        json.dumps({"name": t.name, "description": t.description, "parameters": t.parameters})
        for t in tools
    )
    return (
        f"You may call these tools:\n<tools>\n{listed}\n</tools>\nTo call one, write\n<tool_call>\n"
        '{"name": NAME, "arguments": ARGUMENTS}\n</tool_call>\nand you will be told the result.'
    )


def results(tools: Sequence[Tool], text: str) -> list[str]:
    """What the calls in a text gave, in order; empty where it calls nothing.

    A call that is no JSON, names no tool, or has arguments that do not fit the schema gives a text
    that says so.
    """
    return [_result(tools, call) for call in _CALL.findall(text)]


def _result(tools: Sequence[Tool], call: str) -> str:
    try:
        told = json.loads(call)
        name, arguments = told["name"], told["arguments"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "error: a call is a JSON object with a name and arguments"
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return f"error: there is no tool {str(name)[:80]!r}"
    try:
        jsonschema.validate(arguments, {"type": "object", **tool.parameters})
        return tool.run(**arguments)[:_LONGEST]
    except jsonschema.ValidationError as error:
        return f"error: {error.message[:200]}"
    except ValueError as error:
        return f"error: {str(error)[:200]}"
