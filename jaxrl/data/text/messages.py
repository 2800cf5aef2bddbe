"""One normal form of a message, in front of every chat template.

The public formats write one conversation in many ways. `normal` gives all of them one form, so that
they have the same tokens: roles of ShareGPT and of older APIs, contents as parts, calls with their
arguments as JSON, and keys that are null because another row of a Parquet file has them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = dict[str, Any]
"""`role` and `content`, a text. Where the conversation has them: `tool_calls` whose arguments are
objects, `tool_call_id`, `name`, `reasoning_content`, `tools` that are offered with the message, and
`weight`, 0 for a message of the assistant that is not learned."""

Text = str | tuple[Message, ...]
"""A text, or messages in the one form."""

ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "developer": "system",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
"""Names of roles in public formats, and the role that each is."""

_KNOWN_ROLES = {*ROLES, *ROLES.values()}
_CALLS = ("function_call", "tool_call")
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_SWITCHES = ("train", "training", "loss", "loss_scale", "weight")
"""Fields that say whether a message is learned; `masked` says that it is not."""
_KEYS = (("role", "from"), ("content", "value"))
"""Keys of a message, in the layouts of OpenAI and of ShareGPT."""
_REPR = re.compile(r"\s*\[?\s*\{\s*'(role|from|content|value)'\s*:")
_TEXTS = ("text", "input_text", "output_text")
_BLOCKS = ("tool_use", "tool_result")
"""Types of parts that are calls and their results, in the layout of Anthropic."""
_TURN_KEYS = {
    **{role: role for role in _KNOWN_ROLES},
    **dict.fromkeys(("input", "prompt", "question"), "user"),
    **dict.fromkeys(("output", "response", "answer"), "assistant"),
}
"""Keys of a pair of turns, and the role of each."""
_FIRST = {"system": 0, "user": 1}
"""Roles that begin such a pair, in whatever order its keys are written."""


class NotText(ValueError):
    """A part of a content, or a column, that is no text."""


def normal(message: Any, where: str = "", *, strict: bool = True) -> Message:
    """A message in the one form.

    Args:
      message: with `role` and `content`, or `from` and `value` as in ShareGPT.
      where: the message is, for the error.
      strict: refuse what a template cannot write; else such a value stays as it is.

    Raises:
      ValueError: it is no message, holds a part that is no text, or a call that is none.
    """
    lead = f"{where} " if where else ""
    if not isinstance(message, Mapping):
        raise ValueError(f"{lead}holds {message!r:.60}, which is no message with a role")
    fields = {str(name): value for name, value in message.items() if value is not None}
    for name, other in _KEYS:
        if name not in fields and other in fields:
            fields[name] = fields.pop(other)
    spelling = fields.get("role")
    if not strict and spelling is None:
        return dict(message)
    if not isinstance(spelling, str) or not spelling:
        raise ValueError(f"{lead}holds {message!r:.60}, which is no message with a role")
    role = spelling.strip().lower()
    where = f"{lead}message of {spelling}"
    if ROLES.get(role, role) == "assistant":
        _check_parts([fields.get(name) for name in ("content", *_THOUGHTS)], where)
    content, thought = _content(fields.pop("content", None), where)
    calls = fields.pop("tool_calls", None) or _legacy(fields.pop("function_call", None))
    if role in _CALLS:
        calls = _json(content, f"{where}: its content")
        if strict and not calls:
            raise ValueError(f"{where}: its content is {content!r:.60}, which holds no call")
        content = ""
    thoughts = [_thought(fields.pop(name), where) for name in _THOUGHTS if name in fields]
    thought = next(filter(None, thoughts), thought)
    out: Message = {"role": ROLES.get(role, role), "content": content or ""}
    if calls:
        out["tool_calls"] = _calls(calls, where, strict=strict)
    if strict and content is None and not calls:
        raise ValueError(f"{lead}holds a message of {spelling} without content")
    if thought:
        out["reasoning_content"] = thought
    if "tools" in fields and (offered := tools(fields.pop("tools"), where)):
        out["tools"] = offered
    weight = _weight(fields, where, out["role"])
    if weight != 1:
        out["weight"] = weight
    ours = ("role", "masked", *_SWITCHES)
    return out | {name: fields[name] for name in fields if name not in ours}


def conversation(value: Any, where: str = "") -> tuple[Message, ...]:
    """A list of messages in the one form; a single message is a list of one.

    A call that follows a message of the assistant belongs to it.

    Raises:
      ValueError: it is no list of messages.
    """
    if isinstance(value, Mapping):
        value = value["messages"] if isinstance(value.get("messages"), list | tuple) else [value]
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise ValueError(f"{where} is {value!r:.60}, neither a text nor a list of messages")
    turns = list[Message]()
    for turn in itertools.chain.from_iterable(map(_apart, value)):
        message = normal(turn, where)
        if turns and turns[-1]["role"] == "assistant" and _is_call(turn):
            message = _with_calls(turns.pop(), message, where)
        turns.append(message)
    return tuple(turns)


def _apart(turn: Any) -> Iterator[Any]:
    """The messages that an element of a conversation stands for.

    Several are a pair with roles for keys, such as `{"human": ..., "assistant": ...}`, and a
    message of the user that holds results of tools.
    """
    fields = {k: v for k, v in turn.items() if v is not None} if isinstance(turn, Mapping) else {}
    content = fields.get("content")
    if fields and all(str(k) in _TURN_KEYS and isinstance(v, str) for k, v in fields.items()):
        pairs = [(_TURN_KEYS[str(k)], v) for k, v in fields.items()]
        pairs.sort(key=lambda pair: _FIRST.get(ROLES.get(pair[0], pair[0]), len(_FIRST)))
        yield from ({"role": role, "content": v} for role, v in pairs)
    elif isinstance(content, list | tuple) and any(_kind(part) in _BLOCKS for part in content):
        yield from _of_blocks(fields, content)
    else:
        yield turn


def _of_blocks(fields: Mapping[str, Any], content: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The messages of one whose content holds calls or results, as in the API of Anthropic."""
    calls = [part for part in content if _kind(part) == "tool_use"]
    others = [part for part in content if _kind(part) != "tool_use"]
    if calls and [*others, *calls] == list(content):
        functions = [{"name": part.get("name"), "arguments": part.get("input")} for part in calls]
        pairs = zip(calls, functions, strict=True)
        tool_calls = [{"id": part.get("id"), "function": function} for part, function in pairs]
        yield {**fields, "content": others, "tool_calls": tool_calls}
        return
    for is_result, run in itertools.groupby(content, lambda part: _kind(part) == "tool_result"):
        if not is_result:
            yield {**fields, "content": list(run)}
            continue
        for part in run:
            result = {"role": "tool", "content": part.get("content") or ""}
            identity = part.get("tool_use_id")
            yield result | ({"tool_call_id": identity} if identity else {})


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def _is_call(turn: Mapping[str, Any]) -> bool:
    """Whether the role of a message says that it is a call."""
    role = turn.get("from") if turn.get("role") is None else turn["role"]
    return isinstance(role, str) and role.strip().lower() in _CALLS


def _with_calls(message: Message, call: Message, where: str) -> Message:
    """A message of the assistant with the calls that follow it: they are one turn."""
    off, other = call.get("weight", 1), message.get("weight", 1)
    if off != other:
        first, second = ("a call", "the turn that it belongs to")[:: 1 if off < other else -1]
        raise ValueError(
            f"{where}: {first} is switched off, and {second} is not; a turn is learned whole or "
            "not at all"
        )
    return {**message, "tool_calls": [*message.get("tool_calls", ()), *call["tool_calls"]]}


def require_answer(turns: Sequence[Message], where: str) -> None:
    """Refuse a conversation that does not end with the assistant's message.

    Raises:
      ValueError: it does not.
    """
    if turns[-1]["role"] != "assistant":
        raise ValueError(f"{where}: the last message is not the assistant's, so it is no answer")


def in_text(text: str, where: str) -> Any:
    """The messages that a text is the JSON of, as tables of texts hold them; None: of none.

    Other JSON with such keys, whose roles are none of messages, is a text.

    Raises:
      ValueError: it is what Python prints of messages.
    """
    role = re.search(r"'(?:role|from)'\s*:\s*'(\w+)'", text) if _REPR.match(text) else None
    if role and _is_role(role[1]) and re.search("'(content|value)'\\s*:", text):
        raise ValueError(
            f"{where} is {text!r:.60}, which Python printed of messages; write it as JSON, by "
            "json.dumps"
        )
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    turns = value if isinstance(value, list) else [value]
    return value if turns and all(map(_is_message, turns)) else None


def _is_message(turn: Any) -> bool:
    """Whether a value has a role of messages, and a content that a message can have."""
    if not isinstance(turn, Mapping) or not all(turn.keys() & {*pair} for pair in _KEYS):
        return False
    role, content = (turn.get(b) if turn.get(a) is None else turn[a] for a, b in _KEYS)
    parts = content if isinstance(content, list) else [content]
    return _is_role(role) and all(isinstance(part, str | Mapping | None) for part in parts)


def _is_role(value: Any) -> bool:
    """Whether a value is the name of a role in a public format."""
    return isinstance(value, str) and value.strip().lower() in _KNOWN_ROLES


def earlier(value: Any, where: str) -> tuple[Message, ...]:
    """Turns before a prompt: pairs of a question and an answer, or messages; none of what is empty.

    Raises:
      ValueError: anything else.
    """
    if not value:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where} is {value!r:.60}, and must be a list")
    if all(isinstance(turn, Mapping) for turn in value):
        return conversation(value, where)
    turns = list[Message]()
    for pair in value:
        if not isinstance(pair, list | tuple) or [type(text) for text in pair] != [str, str]:
            raise ValueError(f"{where} holds {pair!r:.60}; write [question, answer] pairs")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return tuple(turns)


def tools(value: Any, where: str = "") -> list[dict[str, Any]] | None:
    """JSON schemas of tools in the form of OpenAI's API; None where there are none.

    Args:
      value: a list of schemas or one, each an object or its JSON text, with or without the
        wrapping `{"type": "function", "function": ...}`; or the JSON text of the list.
      where: it is, for the error.

    Raises:
      ValueError: anything else.
    """
    if isinstance(value, str) and value.strip():
        value = _json(value, f"{where}: 'tools'" if where else "'tools'")
    if not value:
        return None
    items = [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"{where}: 'tools' is {value!r:.60}; write a list of JSON schemas")
    return [_tool(item, where) for item in items]


def without_nulls(value: Any) -> Any:
    """The value without the keys that are null, as Parquet fills them in."""
    if isinstance(value, Mapping):
        return {str(k): without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


def _tool(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        value = _json(value, f"{where}: 'tools'")
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: 'tools' holds {value!r:.60}, which is no JSON schema")
    schema = without_nulls(value)
    if not isinstance(schema.get("function"), Mapping):
        schema = {"function": {k: v for k, v in schema.items() if k != "type"}}
    function = dict(schema["function"])
    if not isinstance(function.get("name"), str):
        raise ValueError(f"{where}: 'tools' holds {value!r:.60}, which names no function")
    if isinstance(function.get("parameters"), str):
        function["parameters"] = _json(function["parameters"], f"{where}: parameters of a tool")
    return {"type": "function", **schema, "function": function}


def _content(value: Any, where: str) -> tuple[str | None, str]:
    """The text of a content, and the thought that is one of its parts."""
    if value is None or isinstance(value, str):
        return value, ""
    parts = [value] if isinstance(value, Mapping) else value
    if not isinstance(parts, list | tuple):
        raise ValueError(f"{where}: its content is {value!r:.60}; write a text")
    texts, thoughts = [], []
    for part in parts:
        kind, text = _part(part, where)
        (thoughts if kind in _THOUGHTS else texts).append(text)
    return "".join(texts), "".join(thoughts)


def _part(part: Any, where: str) -> tuple[str, str]:
    """The kind of a part of a content, and its text."""
    if isinstance(part, str):
        return "text", part
    fields = {k: v for k, v in part.items() if v is not None} if isinstance(part, Mapping) else {}
    kind = str(fields.get("type", "text" if "text" in fields else ""))
    names = ("text", "content", "value") if kind in _TEXTS else (kind,)
    text = next((fields[name] for name in names if name in fields), None)
    if kind not in (*_TEXTS, *_THOUGHTS, "refusal") or not isinstance(text, str):
        name = f"a part of type {kind!r}" if kind else f"{part!r:.60}"
        raise NotText(
            f"{where}: its content holds {name}; only text is read, as in "
            '[{"type": "text", "text": "..."}]'
        )
    return kind, text


def _thought(value: Any, where: str) -> Any:
    """The text of a thought, which may be in parts."""
    return "".join(_content(value, where)) if isinstance(value, list | tuple) else value


def _check_parts(contents: Sequence[Any], where: str) -> None:
    """Refuse parts of an answer that are not learned while others are."""
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    for part in parts:
        fields = part if isinstance(part, Mapping) else {}
        for name in _SWITCHES:
            if fields.get(name) is not None and fields[name] != 1:
                raise ValueError(
                    f"{where}: {name}={fields[name]!r} of a part divides a message, which is "
                    "learned whole or, with weight 0, not at all; leave it out"
                )


def _legacy(call: Any) -> list[Any]:
    """The calls of a message of OpenAI's first API, which had one."""
    return [call] if call else []


def _calls(value: Any, where: str, *, strict: bool) -> list[dict[str, Any]]:
    if isinstance(value, str):
        value = _json(value, f"{where}: 'tool_calls'")
    items = [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"{where}: 'tool_calls' is {value!r:.60}; write a list of calls")
    return [_call(item, where, strict=strict) for item in items]


def _call(value: Any, where: str, *, strict: bool) -> dict[str, Any]:
    if isinstance(value, str):
        value = _json(value, f"{where}: 'tool_calls'")
    fields = {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else {}
    function = fields.pop("function", None)
    if not isinstance(function, Mapping):
        function = {k: fields.pop(k) for k in ("name", "arguments", "parameters") if k in fields}
    name = function.get("name")
    if not isinstance(name, str):
        raise ValueError(
            f'{where}: {value!r:.60} is no call; write {{"name": "...", "arguments": {{...}}}}'
        )
    arguments = function.get("arguments", function.get("parameters"))
    fields.pop("type", None)
    call = {"name": name, "arguments": _arguments(arguments, where, strict=strict)}
    return {**fields, "type": "function", "function": call}


def _arguments(value: Any, where: str, *, strict: bool) -> Any:
    """The arguments of a call as an object."""
    if value is None or value == "":
        return {}
    if isinstance(value, Mapping):
        return without_nulls(value)
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        parsed = value
    if isinstance(parsed, dict):
        return parsed
    if strict:
        raise ValueError(
            f"{where}: the arguments of a call are {value!r:.60}; write a JSON object, or its text"
        )
    return value


def _json(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{what} is {text!r:.60}, and must be JSON: {error}") from error


def _weight(fields: Mapping[str, Any], where: str, role: str) -> int:
    """1 for a message that may be learned, 0 for one that is not."""
    weights = {name: fields[name] for name in (*_SWITCHES, "masked") if name in fields}
    for name, weight in weights.items():
        if not isinstance(weight, bool | int | float) or weight not in (0, 1):
            raise ValueError(f"{where}: {name}={weight!r} must be 0 or 1; leave it out")
        if weight is True and name != "masked" and role != "assistant":
            raise ValueError(f"{where}: {name}=True: only the assistant's turns are learned")
    if fields.get("train_detail"):
        raise ValueError(
            f"{where}: 'train_detail' divides a message, which is learned whole or, with weight 0, "
            "not at all; leave it out"
        )
    masked = weights.pop("masked", False)
    return int(all(weights.values()) and not masked)
