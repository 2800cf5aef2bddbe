"""Text from outside stays text: a token that it spells out is never one of the template.

What a tool returns is encoded by itself. What a tool says of itself stands within the template's
text, so marks stand for it while that is rendered and encoded.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.environments import Message
from jaxrl.data.text.tokenizers import Tokenizer

_OURS = re.compile("[\ue000-\ue006]")
"""Marks of ours, here and in `jaxrl.data.text.rendering`."""


def rendered(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> str:
    """A conversation as text, up to where the policy writes.

    Raises:
      ValueError: the template refuses it.
    """
    import jinja2

    try:
        return tokenizer.render(messages, list(tools) or None, add_generation_prompt=True).text
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template refuses a conversation: {error}") from error


def trusted(messages: Sequence[Message]) -> list[bool]:
    """Which messages are not from outside: turns of the policy, and a first system message."""
    roles = [message["role"] for message in messages]
    return [role == "assistant" or (role == "system" and not i) for i, role in enumerate(roles)]


def special(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token is no part of a decoded text."""
    return tokenizer.spelled([token]) != tokenizer.decode([token])


@functools.lru_cache(maxsize=1 << 16)
def added(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token, special or not, is known by its spelling, which is text from outside."""
    spelling = tokenizer.spelled([token])
    return token in tokenizer.encode(spelling) and token not in tokenizer.plain(spelling)


def encode_trusted(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a message that is `trusted`: added tokens in it are meant, as the policy wrote them.

    Special ones are text: a turn has none, so the policy has written it letter by letter.
    """
    ids = tokenizer.encode(text)
    added_ids = {i for i in set(ids) if added(tokenizer, i)}
    if not any(special(tokenizer, i) for i in added_ids):
        return ids
    names = {tokenizer.spelled([i]): i for i in added_ids if not special(tokenizer, i)}
    parts = re.split(f"({_any_of(names)})", text) if names else [text]
    return [
        i for part in parts for i in ([names[part]] if part in names else tokenizer.plain(part))
    ]


class Guard(NamedTuple):
    """What stands for texts in tools while they are rendered."""

    number: int
    """Of the marks, so that no message has one."""
    spellings: tuple[str, ...] = ("",)
    """The texts, by their places."""

    def mark(self, place: int) -> str:
        """Stands for the text of a place."""
        return f"\ue005{self.number}:{place}\ue006"

    def within(self, text: str) -> bool:
        """Whether a text may have a mark, as it is or as JSON in ASCII."""
        return f"ue005{self.number}:" in text.replace("\ue005", "ue005")


def guarded(
    tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]], messages: Sequence[Message]
) -> tuple[Sequence[Mapping[str, Any]], Guard]:
    """Tools with marks in place of the added tokens that they spell out, and their guard.

    A tool may describe itself, as those of an MCP server do; so what it says is from outside. Where
    the template's text makes an added token of theirs, as `<` and `>` of a name that is `think`,
    every text has a mark of nothing at both ends.

    Args:
      tokenizer: of the model.
      tools: JSON schemas.
      messages: of their conversation.
    """
    if tokenizer.plain is None or not tools:
        return tools, Guard(0)
    text = "".join(message["content"] for message in messages)
    number = next(n for n in itertools.count() if not Guard(n).within(text))
    return _guarded(tokenizer, json.dumps(tools, default=dict), number)


@functools.lru_cache(maxsize=256)
def _guarded(
    tokenizer: Tokenizer, tools: str, number: int
) -> tuple[Sequence[Mapping[str, Any]], Guard]:
    """`guarded` of tools as JSON, with marks of a number."""
    spellings = [""]

    def taken(match: re.Match[str]) -> str:
        spellings.append(match[0])
        return Guard(number).mark(len(spellings) - 1)

    def hide(text: str) -> str:
        ids = set(tokenizer.encode(text))
        names = {tokenizer.spelled([i]) for i in ids if added(tokenizer, i)}
        names |= set(_OURS.findall(text))
        return re.sub(_any_of(names), taken, text) if names else text

    guarded_tools = _with_texts(json.loads(tools), hide)
    guard, edge = Guard(number, tuple(spellings)), Guard(number).mark(0)
    apart = _with_texts(
        guarded_tools, lambda text: text if text in _SCHEMA else f"{edge}{text}{edge}"
    )

    def count(tool_definitions: Sequence[Mapping[str, Any]]) -> int:
        text = rendered(tokenizer, [{"role": "user", "content": "Hello"}], tool_definitions)
        ids = encode_guarded(tokenizer, text, guard, tokenizer.encode)
        return sum(added(tokenizer, i) for i in ids)

    plain = tokenizer.template is None or count(guarded_tools) == count(apart)
    return (guarded_tools if plain else apart), guard


_SCHEMA = frozenset({
    "type", "function", "name", "description", "parameters", "properties", "required", "enum",
    "items", "default", "format", "anyOf", "oneOf", "allOf", "additionalProperties", "return",
    "strict", "object", "string", "integer", "number", "boolean", "array", "null",
})  # fmt: skip
"""Words of schemas, which templates look for."""


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with all of its texts changed, names of fields too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _with_texts(part, change) for key, part in value.items()}
    return (
        [_with_texts(part, change) for part in value] if isinstance(value, list | tuple) else value
    )


def encode_guarded(
    tokenizer: Tokenizer, text: str, guard: Guard, encode: Callable[[str], Sequence[int]]
) -> list[int]:
    """Ids of a text by `encode`, in which what the marks stand for is text."""
    if not guard.within(text):
        return list(encode(text))
    mark = rf"(?:\ue005|\\ue005){guard.number}:([0-9]+)(?:\ue006|\\ue006)"
    parts = re.split(mark, text)
    return [
        i
        for n, part in enumerate(parts)
        for i in (tokenizer.plain(guard.spellings[int(part)]) if n % 2 else encode(part))
    ]


def _any_of(texts: Collection[str]) -> str:
    """A regular expression for any of the texts, the longest first."""
    return "|".join(sorted(map(re.escape, texts), key=len, reverse=True))
