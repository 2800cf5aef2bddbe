"""Chat templates: conversations to text, by the model's own Jinja program in a sandbox."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.data.text import chat_process
from jaxrl.data.text.chat_process import CLOSE, OPEN
from jaxrl.data.text.messages import Message, normal

RENDER_S = 10.0
"""Time for one rendering; a template that takes longer is ended."""
_START_S = 120.0
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_TIME", "TZ")  # of the environment

_SENTINEL = "\ue002"
"""A character of no text: rendered, it shows whether a template writes what it is given."""

Span = tuple[int, int]


class Rendered(NamedTuple):
    """A conversation as text."""

    text: str
    """Special tokens spelled out."""
    generated: tuple[Span, ...] | None
    """What the assistant wrote, as spans of characters; None if the template does not mark it."""


Render = Callable[..., Rendered]
"""`render(messages, tools=None, add_generation_prompt=False, **variables)`."""


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
      `jinja2.TemplateError` where the template refuses a conversation, fails, tries what the
      sandbox forbids, or takes more than `RENDER_S` seconds or the memory of
      `jaxrl.data.text.chat_process`.
    """
    process = _Process(template)
    marks = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None

    def render(
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> Rendered:
        turns = _turns(messages)
        offered = [schema for turn in turns for schema in turn.pop("tools", None) or ()]
        if any("tool_calls" in turn for turn in turns) and writes_texts():
            turns = [_with_texts(turn) for turn in turns]
        if any(isinstance(turn.get("content"), str) for turn in turns) and takes_parts():
            turns = [_with_parts(turn) for turn in turns]
        inputs = {
            **special,
            **variables,
            "messages": turns,
            "tools": tools or offered or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = process.render({"now": now().isoformat(), "variables": inputs})
        return _take_marks(text) if marks else Rendered(text, None)

    @functools.cache
    def writes_texts() -> bool:
        """Whether the template writes the arguments of a call as the text that it is given."""
        import jinja2

        def attempt(arguments: Any) -> str:
            inputs = {**special, "messages": _called(arguments), "add_generation_prompt": False}
            try:
                return process.render({"now": now().isoformat(), "variables": inputs})
            except jinja2.TemplateError:
                return ""

        text = attempt({"k": "v"})
        if text and "{'k': 'v'}" not in text:
            return False
        return '{"k": "v"}' in attempt('{"k": "v"}')

    @functools.cache
    def takes_parts() -> bool:
        """Whether the template writes what is said where it comes in parts, and not as a text."""
        import jinja2

        def shows(content: Any) -> bool:
            turns = [{"role": "user", "content": content}]
            inputs = {**special, "messages": turns, "add_generation_prompt": False}
            return _SENTINEL in process.render({"now": now().isoformat(), "variables": inputs})

        try:
            return not shows(_SENTINEL) and shows(_parts(_SENTINEL))
        except jinja2.TemplateError:
            return False

    return render


def _parts(text: str) -> list[dict[str, str]]:
    """A text as templates of models that read pictures have it."""
    return [{"type": "text", "text": text}]


def _with_parts(turn: Message) -> Message:
    """The message with what it says in parts."""
    content = turn.get("content")
    return {**turn, "content": _parts(content)} if isinstance(content, str) else turn


def _turns(messages: Sequence[Message]) -> list[Message]:
    """Messages in the one form, with their thoughts under every name that templates know.

    Raises:
      jinja2.TemplateError: one is no message that a template can write.
    """
    try:
        turns = [normal(message, strict=False) for message in messages]
    except ValueError as error:
        import jinja2

        raise jinja2.TemplateError(str(error)) from error
    return [
        {"thinking": turn["reasoning_content"], **turn} if "reasoning_content" in turn else turn
        for turn in turns
    ]


def _called(arguments: Any) -> list[Message]:
    """A conversation with one call."""
    call = {"name": "f", "arguments": arguments}
    calls = [{"id": "abcdefghi", "type": "function", "function": call}]
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]


def _with_texts(turn: Message) -> Message:
    """The message with the arguments of its calls as JSON."""
    if "tool_calls" not in turn:
        return turn

    def text(arguments: Any) -> str:
        return (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )

    calls = [
        {**call, "function": call["function"] | {"arguments": text(call["function"]["arguments"])}}
        for call in turn["tool_calls"]
    ]
    return {**turn, "tool_calls": calls}


def _take_marks(text: str) -> Rendered:
    plain, spans, length, start = [], [], 0, 0
    for part in re.split(f"([{OPEN}{CLOSE}])", text):
        if part == OPEN:
            start = length
        elif part == CLOSE:
            spans.append((start, length))
        else:
            plain.append(part)
            length += len(part)
    return Rendered("".join(plain), tuple(spans))


class _Process:
    """The process that renders one template: started on first use, and again if it ends."""

    def __init__(self, template: str) -> None:
        self._template, self._lock = template, threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a forked process must not use its parent's

    def render(self, given: Mapping[str, Any]) -> str:
        """The text, or a `jinja2.TemplateError`."""
        import jinja2  # a twentieth of a second, which prompts without a template need not take

        line = json.dumps(given, default=_plain).encode() + b"\n"
        with self._lock:
            try:
                if self._popen is None or self._owner != os.getpid():
                    self._start()
                reply = json.loads(self._exchange(line, RENDER_S))
            except TimeoutError:
                self._end()
                raise jinja2.TemplateError(f"it takes more than {RENDER_S:g} s") from None
            except (OSError, EOFError, ValueError) as error:
                self._end()
                raise jinja2.TemplateError("it has ended the process that renders it") from error
            except BaseException:  # such as Ctrl-C: what is to be read next is unknown
                self._end()
                raise
        if "text" in reply:
            return reply["text"]
        kind = getattr(jinja2.exceptions, reply["error"], None)
        kind = kind if kind is jinja2.exceptions.SecurityError else jinja2.TemplateError
        raise kind(reply["message"])

    def _start(self) -> None:
        import jinja2
        import markupsafe

        libraries = (jinja2.__file__, markupsafe.__file__)
        first = {
            "template": self._template,
            "paths": sorted({str(Path(file).parents[1]) for file in libraries}),
        }
        self._owner = os.getpid()
        self._popen = subprocess.Popen(
            # -I and -S: neither this package's modules nor the user's start-up files
            [sys.executable, "-I", "-S", chat_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            bufsize=0,
        )
        weakref.finalize(self, _stop, self._popen, self._owner)
        self._exchange(json.dumps(first).encode() + b"\n", _START_S)

    def _exchange(self, line: bytes, limit: float) -> bytes:
        """Send a line and read one, both within `limit` seconds."""
        end, read = time.monotonic() + limit, [b""]
        out, back = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        os.set_blocking(out, False)
        look = select.poll()
        look.register(back, select.POLLIN)
        look.register(out, select.POLLOUT)
        while not read[-1].endswith(b"\n"):
            ready = dict(look.poll(max(0.0, end - time.monotonic()) * 1000))
            if not ready:
                raise TimeoutError
            if back in ready:
                read.append(os.read(back, 1 << 20))
                if not read[-1]:
                    raise EOFError
            elif line:
                line = line[os.write(out, line[: 1 << 16]) :]
                if not line:
                    look.unregister(out)
        return b"".join(read)

    def _end(self) -> None:
        if self._popen is not None:
            _stop(self._popen, self._owner)
            self._popen = None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    import jinja2

    raise jinja2.TemplateError(f"a conversation holds {value!r:.100}; use plain values")


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process, unless it is another's."""
    if os.getpid() == owner and process.poll() is None:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            pipe.close()
