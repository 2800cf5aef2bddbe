"""Chat templates: conversations to text, by the model's own Jinja program in a sandbox."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
"""`role` and `content`, and what the template knows besides: `tool_calls`, `reasoning_content`."""

Span = tuple[int, int]

_OPEN, _CLOSE = "\U000f0000", "\U000f0001"  # private use: what a generation block wrote
_REASONING = ("reasoning_content", "thinking", "reasoning")


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    """Special tokens spelled out."""
    generated: tuple[Span, ...] | None
    """What the assistant wrote, as spans of characters; None if the template does not mark it."""


Render = Callable[..., Rendered]
"""`render(messages, tools=None, add_generation_prompt=False, **variables)`."""


class _Generation(Extension):
    """The tag `{% generation %}`, by which a template marks what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


def compile_template(
    template: str,
    special: dict[str, str],
    *,
    now: Callable[[], datetime.datetime] = datetime.datetime.now,
) -> Render:
    """A renderer of conversations, equal to transformers'.

    Args:
      template: Jinja source, as in `tokenizer_config.json` or GGUF metadata.
      special: names the template may use, such as `bos_token`.
      now: the clock of templates that tell the model today's date.

    Returns:
      render(messages, tools, add_generation_prompt, **variables) -> `Rendered`. `tools` are JSON
      schemas; variables are the template's own, such as `enable_thinking`. It raises
      `jinja2.TemplateError` where the template refuses a conversation, or tries what the sandbox
      forbids.
    """

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    # Jinja's own filter escapes HTML
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    compiled = environment.from_string(template)
    marks = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None

    def render(
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> Rendered:
        text = compiled.render(
            messages=[_with_reasoning(message) for message in messages],
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **special,
            **variables,
        )
        return _take_marks(text) if marks else Rendered(text, None)

    return render


def _with_reasoning(message: Message) -> Message:
    """The message with its reasoning under every name that templates read it by."""
    given = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if given is None:
        return message
    return {"thinking": given, **message, "reasoning_content": given}


def _take_marks(text: str) -> Rendered:
    plain, spans, length, start = [], [], 0, 0
    for part in re.split(f"([{_OPEN}{_CLOSE}])", text):
        if part == _OPEN:
            start = length
        elif part == _CLOSE:
            spans.append((start, length))
        else:
            plain.append(part)
            length += len(part)
    return Rendered("".join(plain), tuple(spans))
