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

from jaxrl.data.environments.tools import arguments, schemas
from jaxrl.data.environments.tools.calls import Call, Malformed
from jaxrl.data.environments.tools.formats import HERMES

MOST_CALLS = 16
"""Calls of a turn that are made; what a turn takes would else have no limit."""
_LONGEST_NAME = 128
"""Characters of a tool's name, as the protocol MCP has it."""
_LONGEST, _LONGEST_TOGETHER = 4000, 1 << 15  # characters of a result, and of those of a turn


class Result(NamedTuple):
    """What a call gave."""

    text: str
    """For the policy."""
    failed: bool
    """Whether it is an error: the tool has raised one, or was not called."""


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
    parts: Callable[[], Mapping[str, float]] = dict
    """Named figures of the episode so far, for the log."""

    @property
    def schema(self) -> dict[str, Any]:
        """What a chat template is given of it.

        Raises:
          ValueError: `parameters` are no JSON schema.
        """
        try:
            arguments.check_schema(self.parameters)
        except ValueError as error:
            raise ValueError(f"tool {self.name!r}: {error}") from error
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": {"type": "object", **self.parameters},
        }
        return {"type": "function", "function": function}


def check_names(tools: Sequence[Tool]) -> None:
    """Refuse tools that a call cannot tell apart, or whose names are no names.

    Raises:
      ValueError: two have one name, or a name is empty, long or has control characters.
    """
    names = [tool.name for tool in tools]
    for name in names:
        if not (name.strip() and name.isprintable() and len(name) <= _LONGEST_NAME):
            raise ValueError(
                f"a tool is named {name[:_LONGEST_NAME]!r}; a name is printable and has 1 to "
                f"{_LONGEST_NAME} characters"
            )
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} tools are named {name!r}; give each its own")


def tool(function: Callable[..., str], *, name: str = "", description: str = "") -> Tool:
    """A function of one's own as a tool.

    Args:
      function: its arguments have type hints that JSON knows: str, int, float, bool, Literal, None,
        lists and dicts of these. It returns a text. Its docstring describes it, and under `Args:`
        its arguments.
      name: in place of the function's.
      description: in place of its docstring's first paragraph.

    Raises:
      ValueError: an argument has no type hint, or the hint of what it returns is not str.
    """
    import pydantic

    doc = inspect.getdoc(function) or ""
    helps, hints = _helps(doc), typing.get_type_hints(function)
    if hints.get("return", str) is not str:
        raise ValueError(
            f"tool {name or function.__name__!r} returns {hints['return']}; return a text, such as "
            "str() or json.dumps() of it, and annotate it with str"
        )
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
    descriptions: dict[str, str] = {}
    section = textwrap.dedent(doc.partition("Args:\n")[2].partition("\n\n")[0])
    for entry in re.split(r"\n(?=\S)", section):
        name, colon, text = entry.partition(":")
        if colon:
            descriptions[name.strip()] = " ".join(text.split())
    return descriptions


def instructions(tool_schemas: Sequence[Mapping[str, Any]]) -> str:
    """A system message that says which tools there are and how they are called.

    It is for models whose chat template does not.
    """
    listed = "\n".join(json.dumps(schema.get("function", schema)) for schema in tool_schemas)
    return (
        f"You may call these tools:\n<tools>\n{listed}\n</tools>\nTo call one, write\n<tool_call>\n"
        '{"name": NAME, "arguments": ARGUMENTS}\n</tool_call>\nand you will receive the result.'
    )


def results(tools: Sequence[Tool], text: str) -> list[str]:
    """The texts of `outcomes`."""
    return [outcome.text for outcome in outcomes(tools, text)]


def cut(text: str, most: int) -> str:
    """The first characters of a text, and how many more there are."""
    excess = len(text) - most
    return text if excess <= 0 else f"{text[:most]}\n[{excess} more characters]"


def joined(texts: Sequence[str]) -> str:
    """The results of a turn as one message; a longer one is cut off, and says so."""
    return cut("\n".join(texts), _LONGEST_TOGETHER)


def outcomes(tools: Sequence[Tool], text: str) -> list[Result]:
    """What the calls in a text gave, in order; empty where it calls nothing.

    A call that is no JSON or has a text that UTF-8 cannot encode, names no tool, or has arguments
    that do not fit the schema gives a text that says so, and so does each beyond `MOST_CALLS`. A
    long result is cut off, and says so.

    Raises:
      TypeError: a tool gave something else than a text.
    """
    calls = HERMES.read(text)[1]
    refusal = Result(f"error: a turn may make {MOST_CALLS} calls; this is one more", True)
    call_results = [_result(tools, call) for call in calls[:MOST_CALLS]]
    return call_results + [refusal] * (len(calls) - len(call_results))


def count(text: str) -> int:
    """How many calls of a text are made, malformed ones included."""
    return min(len(HERMES.read(text)[1]), MOST_CALLS)


def malformed(text: str) -> int:
    """How many calls in a text cannot be read."""
    return sum(isinstance(call, Malformed) for call in HERMES.read(text)[1])


def _result(tools: Sequence[Tool], call: Call | Malformed) -> Result:
    if isinstance(call, Malformed):
        return Result("error: a call is a JSON object with a name and arguments", True)
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        return Result(f"error: there is no tool {call.name[:80]!r}", True)
    try:
        call_arguments = _given(tool, call.arguments)
        text = tool.run(**call_arguments)
    except ValueError as error:
        return Result(f"error: {str(error)[:200]}", True)
    if not isinstance(text, str):
        raise TypeError(
            f"tool {tool.name!r} gave a {type(text).__name__}, {text!r:.100}; return a text, such "
            "as str() or json.dumps() of it"
        )
    return Result(cut(text, _LONGEST), False)


def _signature(function: Callable[..., str]) -> inspect.Signature:
    """Of a function; one that takes anything where it has none, as some of Python's own."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(lambda **arguments: "")


def _given(tool: Tool, call_arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that a tool is called with.

    Raises:
      ValueError: they do not fit.
    """
    arguments.check(tool.parameters, call_arguments)
    try:
        _signature(tool.run).bind(**call_arguments)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return schemas.fitted(call_arguments, tool.parameters, tool.parameters)
