"""Formats in which models write tool calls, read into one.

A policy calls tools as its chat template taught it. `of_template` chooses the format by the
template; `Format.read` gives what a turn says and what it calls. An environment reads every turn in
one format, that of Hermes and Qwen (`jaxrl.data.environments.tools.definition`), into which
`canonical` writes turns of the others. Nothing of that goes back into the tokens of the
conversation.

Turns are read in the process that trains, under no time limit: the work is linear in their length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.environments.tools import schemas, spellings
from jaxrl.data.environments.tools.calls import (
    Call,
    Malformed,
    dumps,
    of_json,
    of_list,
    of_named,
    of_parts,
    of_python,
)
from jaxrl.data.sources import extract

Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of tools, as in `Opening.tools`."""

Read = tuple[str, list[Call | Malformed]]
"""What a turn says beside its calls, and its calls in order."""


class Format(NamedTuple):
    """How a family of models calls tools."""

    name: str
    marks: tuple[str, ...]
    """Its chat templates have one of these texts."""
    read: Callable[..., Read]
    """`(turn, tools=())`: special tokens of the turn are spelled out. Values that are written
    without a type have that of the tool's schema. A thought, see `extract.after_thought`, is said,
    and calls in it are none."""
    spell: Callable[[str, Sequence[Call], str], str] | None
    """`(what a turn says, its calls, template) -> turn`, the other way; None: as `written`."""


def of_template(template: str | None) -> Format:
    """The format of a chat template; Hermes' where none shows, which is then explained in words."""
    candidates = (f for f in FORMATS if any(mark in (template or "") for mark in f.marks))
    return next(candidates, HERMES)


def canonical(form: Format, text: str, tools: Tools = ()) -> str:
    """A turn with its calls in the format of Hermes, each after what the turn says."""
    if form.name == HERMES.name:
        return text
    content, calls = form.read(text, tools)
    return "\n".join([part for part in [content.strip()] if part] + [write_call(c) for c in calls])


def to_template_form(form: Format, text: str, tools: Tools, template: str) -> str:
    """A turn in the format of Hermes, as a template teaches to write it: the other way.

    A turn with a malformed call stays as it is.

    Raises:
      ValueError: the format cannot write its calls.
    """
    content, calls = HERMES.read(text)
    valid_calls = [call for call in calls if isinstance(call, Call)]
    if form.spell is None or len(valid_calls) < len(calls) or not (calls or form.name == "harmony"):
        return text
    turn = form.spell(content.strip(), valid_calls, template)
    if form.read(turn, tools)[1] != calls:
        raise ValueError(f"the calls {text!r} cannot be written in the format {form.name}")
    return turn


def write_call(call: Call | Malformed) -> str:
    """A call in the format of Hermes; a malformed one as JSON that is no call."""
    well = isinstance(call, Call)
    value = {"name": call.name, "arguments": call.arguments} if well else call.text
    return f"<tool_call>\n{dumps(value)}\n</tool_call>"


def _beside_thoughts(parse: Callable[[str, Tools], Read]) -> Callable[..., Read]:
    def read(text: str, tools: Tools = ()) -> Read:
        rest = extract.after_thought(text)
        if rest is None:
            return text, []
        content, calls = parse(rest, tools)
        return text[: len(text) - len(rest)] + content, calls

    return read


_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def _hermes(text: str, tools: Tools) -> Read:
    return _TAGGED.sub("", text), [of_json(block.strip()) for block in _TAGGED.findall(text)]


def _qwen_coder(text: str, tools: Tools) -> Read:
    """Functions and parameters as tags, in which all values are bare text."""
    calls = [_tagged_function(block.strip(), tools) for block in _TAGGED.findall(text)]
    return _TAGGED.sub("", text), calls


_FUNCTION = re.compile(r"<function=([^>\s]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?")
_SPACE = re.compile(r"\s*")


def _tagged_function(text: str, tools: Tools) -> Call | Malformed:
    head = _FUNCTION.match(text)
    if head is None:
        return Malformed(text)
    kinds, arguments, at = schemas.parameters(tools, head[1]), {}, head.end()
    while match := _PARAMETER.match(text, at):
        end = text.find("</parameter>", match.end())
        value = text[match.end() : end].removesuffix("\n")
        if end < 0 or "<parameter=" in value:  # one that is not closed
            return Malformed(text)
        arguments[match[1]] = schemas.typed(value, kinds, match[1])
        at = _SPACE.match(text, end + len("</parameter>")).end()
    if text[at:] not in ("", "</function>"):
        return Malformed(text)
    return of_parts(head[1], arguments, text)


_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")


def _is_python(text: str) -> bool:
    """Whether a text begins and ends as a Python list of calls does."""
    text = text.strip()
    inner = text[:-1].rstrip().removesuffix(",").rstrip()
    return _LIST.match(text) is not None and text.endswith("]") and inner.endswith(")")


def _llama(text: str, tools: Tools) -> Read:
    """JSON with `parameters`, several apart by semicolons; or a Python list of calls."""
    content, meant, body = text.partition("<|python_tag|>")
    if not meant:
        content, body = "", text
    if _is_python(body):
        return content, of_python(body)
    if not meant and not re.match(r'\s*\{\s*"(?:type|name)"', body):
        return text, []
    return content, [of_json(object_text) for object_text in _objects(body)]


_APART = re.compile(r"[ \n\t;]*")


def _objects(text: str) -> Iterator[str]:
    """The JSON objects of a text, apart by semicolons or white space; the rest as one."""
    decoder, at = json.JSONDecoder(), _APART.match(text).end()
    while at < len(text):
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError):
            end = len(text)
        yield text[at:end]
        at = _APART.match(text, end).end()


_CODE = re.compile(r"```tool_code[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def _gemma(text: str, tools: Tools) -> Read:
    """A Python list of calls, or blocks of `tool_code`."""
    blocks = _CODE.findall(text)
    if blocks:
        return _CODE.sub("", text), [call for block in blocks for call in of_python(f"[{block}]")]
    return ("", of_python(text)) if _is_python(text) else (text, [])


_FUNCTION_GEMMA = re.compile(
    r"<start_function_call>(.*?)(?:<end_function_call>|<start_function_response>|\Z)", re.DOTALL
)
_NAMED = re.compile(r"call:([\w.-]+)\{")
_KEY = re.compile(r"(?<![\w.-])([\w.-]+)\s*:")


def _function_gemma(text: str, tools: Tools) -> Read:
    """`call:NAME{key:<escape>text<escape>,key:1}`."""

    def call(inside: str) -> Call | Malformed:
        inside = inside.strip()
        head, parts = _NAMED.match(inside), inside.split("<escape>")
        if head is None or not inside.endswith("}") or len(parts) % 2 == 0:
            return Malformed(inside)
        # every second part stands between <escape>s; elsewhere keys have no quotes
        parts[0] = parts[0][head.end() - 1 :]
        plain = [_KEY.sub(r'"\1":', part) for part in parts[::2]]
        quoted = [json.dumps(part) for part in parts[1::2]] + [""]
        return of_named(head[1], "".join(a + b for a, b in zip(plain, quoted, strict=True)))

    bodies = _FUNCTION_GEMMA.findall(text)
    return _FUNCTION_GEMMA.sub("", text), [call(body) for body in bodies]


def _mistral(text: str, tools: Tools) -> Read:
    """A JSON list after `[TOOL_CALLS]`; or a name, `[ARGS]` and JSON, after each of them."""
    content, *parts = text.split("[TOOL_CALLS]")
    calls: list[Call | Malformed] = []
    for part in parts:
        name, args, arguments = part.partition("[ARGS]")
        if args:
            calls.append(of_named(name.partition("[CALL_ID]")[0].strip(), arguments.strip()))
        else:
            calls += of_list(part.strip())
    return content, calls


_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|\Z)", re.DOTALL)


def _deepseek(text: str, tools: Tools) -> Read:
    """`function`, a separator, the name and JSON in a fence; since V3.1 name, separator, JSON."""

    def call(inside: str) -> Call | Malformed:
        first, separator, rest = inside.partition("<｜tool▁sep｜>")
        if not separator:
            return Malformed(inside)
        name, fence, arguments = rest.partition("\n```json\n")
        if fence and arguments.rstrip().endswith("```"):
            return of_named(name.strip(), arguments.rstrip().removesuffix("```"))
        return of_named(first.strip(), rest.strip())

    content = text.partition("<｜tool▁calls▁begin｜>")[0]
    bodies = _DEEPSEEK.findall(text)
    return (content if bodies else text), [call(body) for body in bodies]


_HARMONY = re.compile(r"<\|(start|channel|constrain|message|call|end|return)\|>")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")


def _harmony(text: str, tools: Tools) -> Read:
    """gpt-oss: a message on the commentary channel `to=functions.NAME`; `final` is what it says."""
    final_bodies: list[str] = []
    calls: list[Call | Malformed] = []
    for header, body in _messages(text):
        recipient = _RECIPIENT.search(header)
        if recipient is None and "<|channel|>final" in header and body is not None:
            final_bodies.append(body)
        elif recipient is not None and body is not None:
            calls.append(of_named(recipient[1], body.strip()))
        elif recipient is not None and "<|channel|>" in header:
            calls.append(Malformed(header))
    return ("\n".join(final_bodies) if final_bodies or "<|channel|>" in text else text), calls


def _messages(text: str) -> Iterator[tuple[str, str | None]]:
    """Header and body of each message; None: it was cut off before its body."""
    first, *rest = _HARMONY.split(text)
    header, body = [first], None
    for tag, piece in zip(rest[::2], rest[1::2], strict=True):
        if tag == "message" and body is None:
            body = [piece]
        elif tag in ("message", "constrain") and body is not None:
            body += [f"<|{tag}|>", piece]
        elif tag in ("constrain", "channel") and body is None:
            header += [f"<|{tag}|>", piece]
        else:
            yield "".join(header), None if body is None else "".join(body)
            header, body = [f"<|{tag}|>" if tag == "channel" else "", piece], None
    yield "".join(header), None if body is None else "".join(body)


HERMES = Format("hermes", ("<tool_call>",), _beside_thoughts(_hermes), None)

FORMATS = (
    Format("harmony", ("<|channel|>",), _beside_thoughts(_harmony), spellings.harmony),
    Format("mistral", ("[TOOL_CALLS]",), _beside_thoughts(_mistral), spellings.mistral),
    Format("deepseek", ("<｜tool▁call▁begin｜>",), _beside_thoughts(_deepseek), spellings.deepseek),
    Format(
        "function_gemma",
        ("<start_function_call>",),
        _beside_thoughts(_function_gemma),
        spellings.function_gemma,
    ),
    Format("qwen_coder", ("<function=",), _beside_thoughts(_qwen_coder), spellings.qwen_coder),
    HERMES,
    Format("llama", ("<|python_tag|>", "<|eot_id|>"), _beside_thoughts(_llama), spellings.llama),
    Format("gemma", ("<start_of_turn>",), _beside_thoughts(_gemma), spellings.gemma),
)
"""The most specific marks first."""
