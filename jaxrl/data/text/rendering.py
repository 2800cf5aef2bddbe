"""A conversation through a chat template: rendered with numbers in place of what is said, so that a
text from outside is never taken for the template's own.

A template may trim what is said, or write it as JSON. Which it does is seen from a second rendering
with texts that these change, and then done here.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.environments import Message
from jaxrl.data.environments.tools import formats
from jaxrl.data.environments.tools.definition import instructions
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.data.text.untrusted_text import (
    Guard,
    encode_guarded,
    encode_trusted,
    guarded,
    rendered,
    trusted,
)


class Joint(NamedTuple):
    """What stands between two turns of the policy."""

    close: tuple[int, ...]
    """Ends a turn that the policy has not ended itself; empty where it has."""
    more: tuple[int, ...]
    """The messages, up to where the policy writes again."""


_MARK = re.compile("\ue000([0-9]+)\ue001")
_TURN = "\ue002"
_NO_THOUGHT = re.compile(r"<think>\s*</think>\s*")
FINAL = "<|channel|>final<|message|>"
"""Begins an answer in harmony, the format of gpt-oss."""
_ASKED = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": _TURN})


def opening(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[int, ...]:
    """Ids of a conversation, up to where the policy writes.

    Raises:
      ValueError: the template refuses it, leaves a message out, or changes what one says.
    """
    guarded_tools, guard = guarded(tokenizer, tools, messages)
    conversation, template_tools = with_tools(tokenizer, messages, guarded_tools)
    turns = in_template_form(tokenizer, conversation, tools if template_tools else ())
    call_turns = {i for i, (a, b) in enumerate(zip(conversation, turns, strict=True)) if a is not b}
    return tuple(_ids(tokenizer, (), turns, template_tools, guard, call_turns))


def with_tools(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[Message], Sequence[Mapping[str, Any]]]:
    """A conversation and its tools; these in a message where the template does not show them."""
    marked = _marked(messages)
    if tools and rendered(tokenizer, marked, tools) == rendered(tokenizer, marked):
        return explained(messages, tools, system=_takes_system(tokenizer)), ()
    return messages, tools


@functools.lru_cache(maxsize=16)
def _takes_system(tokenizer: Tokenizer) -> bool:
    """Whether the template shows a system message."""
    messages = _marked([{"role": "system", "content": ""}, {"role": "user", "content": ""}])
    try:
        return messages[0]["content"] in rendered(tokenizer, messages)
    except ValueError:
        return False


def in_template_form(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """The messages, with calls in the policy's turns as a template that shows tools has them."""
    form = formats.of_template(tokenizer.template)
    if not tools or form is formats.HERMES:
        return list(messages)

    def rewrite(message: Message) -> Message:
        if message["role"] != "assistant" or not formats.HERMES.read(message["content"])[1]:
            return message
        try:
            content = formats.to_template_form(form, message["content"], tools, tokenizer.template)
        except ValueError:  # it is shown as environments read it
            return message
        for end in tokenizer.eos_ids:
            content = content.removesuffix(tokenizer.spelled([end]))
        return {**message, "content": content}

    return [rewrite(message) for message in messages]


def kept(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> Sequence[Message]:
    """The messages, without the reasoning that the template leaves out.

    What is left of such a turn has the white space at its ends that the template leaves there.
    """
    indices = {i for i, m in enumerate(messages) if "</think>" in m["content"]}
    indices = {i for i in indices if messages[i]["role"] == "assistant"}
    if not indices:
        return messages
    tools, _ = guarded(tokenizer, tools, messages)
    rests = {i: messages[i]["content"].rpartition("</think>")[2] for i in indices}
    marked = _marked(messages)
    cores = {i: rests[i].replace(rests[i].strip() or "\n", marked[i]["content"]) for i in indices}

    def text(contents: Mapping[int, str]) -> str:
        changed = [{**m, "content": contents.get(i, m["content"])} for i, m in enumerate(marked)]
        return rendered(tokenizer, changed, tools)

    full_text = text({i: f"<think>\n\ue003{i}\ue004\n</think>{cores[i]}" for i in indices})
    left = {i for i in indices if f"\ue003{i}\ue004" not in full_text}
    if not left:
        return messages
    still = {i: f"<think>\n\ue003{i}\ue004\n</think>{cores[i]}" for i in indices - left}
    trims = (str.strip, lambda content: content.lstrip("\n"), str.lstrip, str)
    trim = next(
        (t for t in trims if text(still | {i: t(cores[i]) for i in left}) == full_text), str
    )
    return [{**m, "content": trim(rests[i])} if i in left else m for i, m in enumerate(messages)]


def answer(turn: Message) -> Message:
    """A turn of the policy without its reasoning."""
    return {**turn, "content": turn["content"].rpartition("</think>")[2].lstrip("\n")}


def explained(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, system: bool = True
) -> Sequence[Message]:
    """The messages, with the tools in words.

    Args:
      messages: a conversation.
      tools: JSON schemas; without any the messages stay as they are.
      system: say it in a system message; else at the head of the first message of the user, if
        there is one.
    """
    if not tools:
        return messages
    first = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
    if not system and first is not None:
        content = f"{instructions(tools)}\n\n{messages[first]['content']}"
        return [*messages[:first], {**messages[first], "content": content}, *messages[first + 1 :]]
    system_texts = [m["content"] for m in messages[:1] if m["role"] == "system"]
    content = "\n\n".join([*system_texts, instructions(tools)])
    return [{"role": "system", "content": content}, *messages[len(system_texts) :]]


@functools.lru_cache(maxsize=16)
def led(tokenizer: Tokenizer) -> str | None:
    """What an earlier turn begins with, where that is not what the policy is asked to continue.

    It is empty where the template leaves out the empty thought that it begins an answer with, and
    `FINAL` where it writes of a turn the answer alone. None: a turn follows what was asked.
    """
    question = [{"role": "user", "content": "Hello"}]
    lead = rendered(tokenizer, question)
    before = rendered(tokenizer, [*question, {"role": "assistant", "content": _TURN}, *question])
    before = before.partition(_TURN)[0]
    if lead.startswith(before) and _NO_THOUGHT.fullmatch(lead[len(before) :]):
        return ""
    return FINAL if before == lead + FINAL else None


def joint(
    tokenizer: Tokenizer,
    last: int,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
) -> Joint:
    """What is appended after a turn whose last token is `last`.

    Raises:
      ValueError: the template does not end a turn with a token that ends a sequence, or does with
        the messages what `opening` refuses.
    """
    ids = tuple(_ids(tokenizer, _ASKED, messages, *guarded(tokenizer, tools, messages)))
    if led(tokenizer) == FINAL:  # it ends a message otherwise than the policy ends a turn
        ids = (tokenizer.eos_ids[0], *ids[1:])
    if ids[0] not in tokenizer.eos_ids:
        raise ValueError(
            f"the chat template ends a turn with token {ids[0]}, which does not end a sequence"
        )
    return Joint(() if last == ids[0] else ids[:1], ids[1:])


@functools.lru_cache(maxsize=4)
def end(tokenizer: Tokenizer) -> int:
    """The token with which the template ends a turn."""
    return joint(tokenizer, -1, [{"role": "user", "content": "Hello"}]).close[0]


def _marked(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The messages with numbers in place of what they say."""
    return [{**m, "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)]


def _ids(
    tokenizer: Tokenizer,
    before: Sequence[Message],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    guard: Guard,
    call_turns: Collection[int] = (),
) -> list[int]:
    """Ids of messages, from the end of the turn before them if there is one.

    Args:
      tokenizer: of the model.
      before: none, or what ends with a turn.
      messages: rendered with numbers in their place, for which what they say is put then.
      tools: that the conversation offers, from `guarded`.
      guard: what their marks stand for, which may be in a message too.
      call_turns: positions of the messages with calls, whose special tokens are meant too.

    Raises:
      ValueError: the template leaves one out, repeats one, or changes what one says.
    """
    text = _rendered_after(tokenizer, before, _marked(messages), tools)
    head, pieces = _pieces(text, len(messages))
    roles = tuple(message["role"] for message in messages)
    ways = _ways(tokenizer, bool(before), roles, json.dumps(tools, default=dict))
    contents = [way(message["content"]) for way, message in zip(ways, messages, strict=True)]
    is_trusted = trusted([*before, *messages])[len(before) :]

    def ids(i: int) -> list[int]:
        if i in call_turns:
            return tokenizer.encode(contents[i])
        meant = functools.partial(encode_trusted, tokenizer) if is_trusted[i] else tokenizer.plain
        return encode_guarded(tokenizer, contents[i], guard, meant)

    message_ids = [ids(i) for i in range(len(messages))]
    full_text = _MARK.sub(lambda match: contents[int(match[1])], text)
    if not guard.within(full_text) and message_ids == [
        tokenizer.encode(content) for content in contents
    ]:
        return tokenizer.encode(full_text)
    out = encode_guarded(tokenizer, head, guard, tokenizer.encode)
    for i, after in pieces:
        out += message_ids[i]
        out += encode_guarded(tokenizer, after, guard, tokenizer.encode)
    return out


def _rendered_after(
    tokenizer: Tokenizer,
    before: Sequence[Message],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
) -> str:
    """What follows the turn before the messages; without one, all."""
    text = rendered(tokenizer, [*before, *messages], tools)
    if not before:
        return text
    if (count := text.count(_TURN)) != 1:
        raise ValueError(f"the chat template writes a turn {count} times; it must once")
    return text.partition(_TURN)[2]


def _pieces(text: str, count: int) -> tuple[str, list[tuple[int, str]]]:
    """What precedes the first number in a text; and each number, with what follows it."""
    head, *pieces = _MARK.split(text)
    pairs = list(zip(map(int, pieces[::2]), pieces[1::2], strict=True))
    if sorted(number for number, _ in pairs) != list(range(count)):
        raise ValueError("the chat template leaves out a message, or repeats one")
    return head, pairs


@functools.lru_cache(maxsize=256)
def _ways(
    tokenizer: Tokenizer, turn: bool, roles: tuple[str, ...], tools: str
) -> tuple[Callable[[str], str], ...]:
    """How the template writes each message of a conversation, see `_WAYS`.

    Args:
      tokenizer: of the model.
      turn: whether the messages follow a turn.
      roles: of the messages.
      tools: that the conversation offers, as JSON.
    """
    messages = [{"role": role, "content": ""} for role in roles]
    text, tried = (
        _rendered_after(tokenizer, _ASKED if turn else (), conversation, json.loads(tools))
        for conversation in (
            _marked(messages),
            [{**m, "content": _probe(i)} for i, m in enumerate(messages)],
        )
    )
    head, pieces = _pieces(text, len(roles))
    ways, at = dict[int, Callable[[str], str]](), len(head)
    for i, rest in pieces:
        candidates = (way for way in _WAYS if tried.startswith(way(_probe(i)) + rest, at))
        way = next(candidates, None)
        if way is None:
            raise ValueError("the chat template changes what a message says")
        ways[i], at = way, at + len(way(_probe(i)) + rest)
    return tuple(ways[i] for i in range(len(roles)))


def _probe(number: int) -> str:
    """A text that each of `_WAYS` writes differently, and most other changes of texts too."""
    return f'\n\u2003\ue000{number}\ue001"aB<&\u2003\n'


def _as_written(quoted: bool, left: str | None, right: str | None, text: str) -> str:
    text = text.lstrip(left).rstrip(right)
    return json.dumps(text, ensure_ascii=False)[1:-1] if quoted else text


_WAYS: tuple[Callable[[str], str], ...] = tuple(
    functools.partial(_as_written, *way)
    for way in itertools.product((False, True), ("", "\n", None), ("", "\n", None))
)
"""How templates write a text: as it is or within a JSON string, and at either end with all white
space, without line breaks, or without any."""
