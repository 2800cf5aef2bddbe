"""Tools that a policy calls. What an environment reads is the format of Hermes and Qwen, JSON
between two tags; a model whose chat template has another writes that, see `formats`.

<tool_call>
{"name": "calculator", "arguments": {"expression": "2 + 3"}}
</tool_call>
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LONGEST = 4000  # characters of one result


class Tool(NamedTuple):
    """Something that the policy may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, which are an object."""
    run: Callable[..., str]
    """Called with the arguments by name. A ValueError that it raises is shown to the policy."""
    close: Callable[[], None] = lambda: None
    """Called when the episode is over; more than once does no harm."""

    @property
    def schema(self) -> dict[str, Any]:
        """What a chat template is given of it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": {"type": "object", **self.parameters},
        }
        return {"type": "function", "function": function}


def tool(function: Callable[..., str], *, name: str = "", description: str = "") -> Tool:
    """A function of one's own as a tool.

    Args:
      function: its arguments have type hints that JSON knows: str, int, float, bool, Literal, None,
        lists and dicts of these. Its docstring describes it, and under `Args:` its arguments.
      name: in place of the function's.
      description: in place of its docstring's first paragraph.

    Raises:
      ValueError: an argument has no type hint.
    """
    import pydantic

    doc = inspect.getdoc(function) or ""
    helps, hints = _helps(doc), typing.get_type_hints(function)
    properties, required = dict[str, Any](), list[str]()
    for argument in inspect.signature(function).parameters.values():
        if argument.name not in hints:
            raise ValueError(
                f"tool {name or function.__name__!r}: annotate its argument {argument.name!r} with "
                "a type, such as str"
            )
        schema = pydantic.TypeAdapter(hints[argument.name]).json_schema()
        about = {"description": helps[argument.name]} if argument.name in helps else {}
        properties[argument.name] = schema | about
        if argument.default is argument.empty:
            required.append(argument.name)
    parameters = {"properties": properties, "required": required, "additionalProperties": False}
    first = " ".join(doc.partition("\n\n")[0].split())
    return Tool(name or function.__name__, description or first, parameters, function)


def _helps(doc: str) -> dict[str, str]:
    """Name to text of a docstring's `Args:` section."""
    found: dict[str, str] = {}
    section = textwrap.dedent(doc.partition("Args:\n")[2].partition("\n\n")[0])
    for each in re.split(r"\n(?=\S)", section):
        name, colon, text = each.partition(":")
        if colon:
            found[name.strip()] = " ".join(text.split())
    return found


def instructions(schemas: Sequence[Mapping[str, Any]]) -> str:
    """A system message that says which tools there are and how they are called.

    It is for models whose chat template does not.
    """
    listed = "\n".join(json.dumps(schema.get("function", schema)) for schema in schemas)
    return (
        f"You may call these tools:\n<tools>\n{listed}\n</tools>\nTo call one, write\n<tool_call>\n"
        '{"name": NAME, "arguments": ARGUMENTS}\n</tool_call>\nand you will receive the result.'
    )


def results(tools: Sequence[Tool], text: str) -> list[str]:
    """What the calls in a text gave, in order; empty where it calls nothing.

    A call that is no JSON, names no tool, or has arguments that do not fit the schema gives a text
    that says so.
    """
    return [_result(tools, call) for call in _CALL.findall(text)]


def _result(tools: Sequence[Tool], call: str) -> str:
    try:
        parsed = json.loads(call)
        name, arguments = parsed["name"], parsed["arguments"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "error: a call is a JSON object with a name and arguments"
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return f"error: there is no tool {str(name)[:80]!r}"
    import jsonschema  # a tenth of a second, which only calls of tools need

    try:
        jsonschema.validate(arguments, {"type": "object", **tool.parameters})
        return tool.run(**arguments)[:_LONGEST]
    except jsonschema.ValidationError as error:
        return f"error: {error.message[:200]}"
    except ValueError as error:
        return f"error: {str(error)[:200]}"
