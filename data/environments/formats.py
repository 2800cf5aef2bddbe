"""Formats in which models write tool calls, read into one.

A policy calls tools as its chat template taught it. `of_template` chooses the format by the
template; `Format.read` gives what a turn says and what it calls. An environment reads every turn in
one format, that of Hermes and Qwen (`jaxrl.data.environments.tools`), into which `canonical` writes
turns of the others. Nothing of that goes back into the tokens of the conversation.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


class Malformed(NamedTuple):
    """A malformed call."""

    text: str


class Format(NamedTuple):
    """How a family of models calls tools."""

    name: str
    marks: tuple[str, ...]
    """Its chat templates have one of these texts."""
    read: Callable[[str], tuple[str, list[Call | Malformed]]]
    """`(turn) -> (what it says beside its calls, calls in order)`; special tokens of the turn are
    spelled out."""


def of_template(template: str | None) -> Format:
    """The format of a chat template; Hermes' where none shows, which is then explained in words."""
    known = (f for f in FORMATS if any(mark in (template or "") for mark in f.marks))
    return next(known, HERMES)


def canonical(form: Format, text: str) -> str:
    """A turn with its calls in the format of Hermes, each after what the turn says."""
    if form.name == HERMES.name:
        return text
    said, calls = form.read(text)
    return "\n".join([each for each in [said.strip()] if each] + [written(c) for c in calls])


def written(call: Call | Malformed) -> str:
    """A call in the format of Hermes."""
    if isinstance(call, Malformed):
        return f"<tool_call>\n{call.text}\n</tool_call>"
    value = json.dumps({"name": call.name, "arguments": call.arguments})
    return f"<tool_call>\n{value}\n</tool_call>"


def _json_call(text: str) -> Call | Malformed:
    """`{"name": ..., "arguments" or "parameters": {...}}`; arguments may be JSON in a text."""
    try:
        parsed = json.loads(text)
        given = parsed["arguments"] if "arguments" in parsed else parsed["parameters"]
        given = json.loads(given) if isinstance(given, str) else given
        if not isinstance(parsed["name"], str) or not isinstance(given, dict):
            return Malformed(text)
        return Call(parsed["name"], given)
    except (ValueError, TypeError, KeyError, RecursionError):
        return Malformed(text)


def _named_call(name: str, arguments: str) -> Call | Malformed:
    """A name, and JSON of its arguments."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = None
    return Call(name, given) if isinstance(given, dict) else Malformed(f"{name}{arguments}")


_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>\s*|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _hermes(text: str) -> tuple[str, list[Call | Malformed]]:
    return _TAGGED.sub("", text), [_json_call(each.strip()) for each in _TAGGED.findall(text)]


def _qwen_coder(text: str) -> tuple[str, list[Call | Malformed]]:
    """Functions and parameters as tags; a value that is JSON is read as such."""

    def call(inside: str) -> Call | Malformed:
        found = _FUNCTION.fullmatch(inside)
        if found is None:
            return Malformed(inside.strip())
        return Call(found[1], {k: _value(v) for k, v in _PARAMETER.findall(found[2])})

    return _TAGGED.sub("", text), [call(each) for each in _TAGGED.findall(text)]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


_PYTHONIC = re.compile(r"\s*\[\s*[A-Za-z_][\w.]*\(.*\)\s*,?\s*\]\s*", re.DOTALL)


def _llama(text: str) -> tuple[str, list[Call | Malformed]]:
    """JSON with `parameters`, several apart by semicolons; or a Python list of calls."""
    body = text.partition("<|python_tag|>")[2] if "<|python_tag|>" in text else text
    if _PYTHONIC.fullmatch(body):
        return "", _python_calls(body)
    meant = body is not text
    if not meant and not re.match(r'\s*\{\s*"(?:type|name)"', body):
        return text, []
    calls = [_json_call(each) for each in _objects(body)]
    return text[: text.find("<|python_tag|>")] if meant else "", calls


def _objects(text: str) -> Iterator[str]:
    """The JSON objects of a text, apart by semicolons or white space; the rest as one."""
    decoder, at = json.JSONDecoder(), 0
    while rest := text[at:].strip(" \n\t;"):
        at = text.index(rest, at)
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError):
            yield rest
            return
        yield text[at:end]
        at = end


def _gemma(text: str) -> tuple[str, list[Call | Malformed]]:
    """A Python list of calls, or a block of `tool_code`."""
    block = re.search(r"```tool_code\s*\n(.*?)\n?```", text, re.DOTALL)
    if block is not None:
        return text[: block.start()] + text[block.end() :], _python_calls(f"[{block[1]}]")
    return ("", _python_calls(text)) if _PYTHONIC.fullmatch(text) else (text, [])


def _python_calls(text: str) -> list[Call | Malformed]:
    """Calls of names with literal keyword arguments; they are read and never run."""
    try:
        entries = ast.parse(text.strip(), mode="eval").body.elts
        return [_python_call(each) for each in entries]
    except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError):
        return [Malformed(text.strip())]


def _python_call(node: ast.expr) -> Call | Malformed:
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        return Malformed(ast.unparse(node))
    given = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
    return Call(ast.unparse(node.func), json.loads(json.dumps(given)))


_FUNCTION_GEMMA = re.compile(
    r"<start_function_call>(.*?)(?:<end_function_call>|<start_function_response>|\Z)", re.DOTALL
)


def _function_gemma(text: str) -> tuple[str, list[Call | Malformed]]:
    """`call:NAME{key:<escape>text<escape>,key:1}`."""

    def call(inside: str) -> Call | Malformed:
        found = re.fullmatch(r"\s*call:([\w.-]+)\{(.*)\}\s*", inside, re.DOTALL)
        if found is None:
            return Malformed(inside)
        # every second part stands between <escape>s; elsewhere keys have no quotes
        parts = found[2].split("<escape>")
        plain = [re.sub(r"([\w.-]+)\s*:", r'"\1":', part) for part in parts[::2]]
        quoted = [json.dumps(part) for part in parts[1::2]] + [""]
        if len(parts) % 2 == 0:
            return Malformed(inside)
        body = "".join(a + b for a, b in zip(plain, quoted, strict=True))
        return _named_call(found[1], "{" + body + "}")

    found = _FUNCTION_GEMMA.findall(text)
    return _FUNCTION_GEMMA.sub("", text), [call(each) for each in found]


def _mistral(text: str) -> tuple[str, list[Call | Malformed]]:
    """A JSON list after `[TOOL_CALLS]`; or a name, `[ARGS]` and JSON, after each of them."""
    said, *parts = text.split("[TOOL_CALLS]")
    calls: list[Call | Malformed] = []
    for part in parts:
        name, args, given = part.partition("[ARGS]")
        if args:
            calls.append(_named_call(name.partition("[CALL_ID]")[0].strip(), given.strip()))
            continue
        listed = _value(part.strip())
        if isinstance(listed, list):
            calls += [_json_call(json.dumps(each)) for each in listed]
        else:
            calls.append(Malformed(part.strip()))
    return said, calls


_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|\Z)", re.DOTALL)
_FENCED = re.compile(r"\s*(\S+)\s*\n```json\n(.*?)\n?```\s*", re.DOTALL)


def _deepseek(text: str) -> tuple[str, list[Call | Malformed]]:
    """`function`, a separator, the name and JSON in a fence; since V3.1 name, separator, JSON."""

    def call(inside: str) -> Call | Malformed:
        first, separator, rest = inside.partition("<｜tool▁sep｜>")
        if not separator:
            return Malformed(inside)
        fenced = _FENCED.fullmatch(rest)
        name, given = (fenced[1], fenced[2]) if fenced else (first.strip(), rest.strip())
        return _named_call(name, given)

    said = text.partition("<｜tool▁calls▁begin｜>")[0]
    found = _DEEPSEEK.findall(text)
    return (said if found else text), [call(each) for each in found]


_HARMONY = re.compile(
    r"(?:<\|start\|>assistant|<\|channel\|>(?:commentary|analysis))"
    r"[^<]*?\bto=(?:functions\.)?([\w.-]+)[^<]*(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>\s*)?"
    r"(?:json)?\s*<\|message\|>(.*?)(?:<\|call\|>|\Z)",
    re.DOTALL,
)
_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>(.*?)(?:<\|\w+\|>|\Z)", re.DOTALL)


def _harmony(text: str) -> tuple[str, list[Call | Malformed]]:
    """gpt-oss: a message on the commentary channel `to=functions.NAME`; `final` is what it says."""
    calls = [_named_call(name, given.strip()) for name, given in _HARMONY.findall(text)]
    said = "\n".join(_FINAL.findall(text))
    return (said if said or "<|channel|>" in text else text), calls


HERMES = Format("hermes", ("<tool_call>",), _hermes)

FORMATS = (
    Format("harmony", ("<|channel|>",), _harmony),
    Format("mistral", ("[TOOL_CALLS]",), _mistral),
    Format("deepseek", ("<｜tool▁call▁begin｜>",), _deepseek),
    Format("function_gemma", ("<start_function_call>",), _function_gemma),
    Format("qwen_coder", ("<function=",), _qwen_coder),
    HERMES,
    Format("llama", ("<|python_tag|>", "<|eot_id|>"), _llama),
    Format("gemma", ("<start_of_turn>",), _gemma),
)
"""The most specific marks first."""
