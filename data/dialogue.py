"""A conversation as tokens, turn by turn, in which nothing that the policy wrote is encoded again.

The ids of a turn are the policy's own. What is appended after it is what the chat template writes
between the end of an assistant's turn and the beginning of the next. `of` proves on conversations
of several turns that this gives the tokens of the whole conversation, and refuses a template for
which it does not.

A text from outside that spells out special tokens is encoded as text. Earlier turns stay as they
were written: a template that leaves out earlier reasoning would leave it out only in a new prompt.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.environments import Message, formats
from jaxrl.data.environments.tools import instructions
from jaxrl.data.tokenizers import Tokenizer


class Joint(NamedTuple):
    """What stands between two turns of the policy."""

    close: tuple[int, ...]
    """Ends a turn that the policy has not ended itself; empty where it has."""
    more: tuple[int, ...]
    """The messages, up to where the policy writes again."""


class Dialogue(NamedTuple):
    """How a conversation becomes tokens."""

    opening: Callable[..., tuple[int, ...]]
    """`(messages, tools=())`: ids up to where the policy writes its first turn. Where the template
    does not show the tools, a system message explains them."""
    joint: Callable[[int, Sequence[Message]], Joint]
    """`(last token of a turn, messages)`: what is appended after the turn."""
    end: int
    """The token that ends a turn."""
    action: Callable[[Sequence[int]], str]
    """The text of a turn in which tools may be called, its calls as environments read them."""


@functools.lru_cache(maxsize=4)
def of(tokenizer: Tokenizer, roles: tuple[str, ...], *, chat: bool) -> Dialogue:
    """The dialogue of a model.

    Args:
      tokenizer: of the model.
      roles: of the messages that follow a turn.
      chat: use the model's chat template; else each message is its content and a line break.

    Raises:
      ValueError: there is no chat template, or its conversations cannot be continued exactly; the
        message gives the conversation.
    """
    if not chat:
        return _in_lines(tokenizer)
    if tokenizer.render is None:
        raise ValueError("chat is asked for, but this model has no chat template; turn it off")
    opening = functools.partial(_opening, tokenizer)
    action = functools.partial(_action, tokenizer)
    made = Dialogue(opening, functools.partial(_joint, tokenizer), -1, action)
    for turns in conversations(roles):
        if problem := _differs(tokenizer, made, turns):
            raise ValueError(
                f"the chat template cannot be continued turn by turn: {problem}, in the "
                f"conversation {turns}; use another template, or rollout.chat=False"
            )
    return made._replace(end=_end(tokenizer))


def conversations(roles: Sequence[str]) -> list[list[Message]]:
    """What a template is tried on: turns followed by messages of the roles, one or two at once."""
    said = ["Go on.", "42", "two\n\nlines", '{"a": [1, 2]}']
    found: list[list[Message]] = []
    for role, system in itertools.product(roles, (False, True)):
        for together in (1, 2):
            texts = itertools.cycle(said)
            turns = [{"role": "system", "content": "Be brief."}] if system else []
            turns.append({"role": "user", "content": "Hello"})
            for answer in ("Yes", "No, 7."):
                turns.append({"role": "assistant", "content": answer})
                turns += [{"role": role, "content": next(texts)} for _ in range(together)]
            found.append(turns)
    return found


def _in_lines(tokenizer: Tokenizer) -> Dialogue:
    end = tokenizer.eos_ids[0]
    plain = tokenizer.plain or tokenizer.encode

    def lines(messages: Sequence[Message]) -> str:
        return "".join(message["content"] + "\n" for message in messages)

    def opening(
        messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        lead = () if tokenizer.bos_id is None else (tokenizer.bos_id,)
        return (*lead, *plain(lines(_explained(messages, tools))))

    def joint(last: int, messages: Sequence[Message]) -> Joint:
        close = () if last in tokenizer.eos_ids else (end,)
        return Joint(close, tuple(plain("\n" + lines(messages))))

    return Dialogue(opening, joint, end, tokenizer.decode)


_MARK = re.compile("\ue000([0-9]+)\ue001")


def _opening(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[int, ...]:
    text = _rendered(tokenizer, _marked(messages), tools)
    if tools and text == _rendered(tokenizer, _marked(messages)):
        messages = _explained(messages, tools)
        text = _rendered(tokenizer, _marked(messages))
    return tuple(_ids(tokenizer, text, messages))


def _explained(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> Sequence[Message]:
    """The messages, with the tools in a system message."""
    if not tools:
        return messages
    first = [m["content"] for m in messages[:1] if m["role"] == "system"]
    content = "\n\n".join([*first, instructions(tools)])
    return [{"role": "system", "content": content}, *messages[len(first) :]]


def _action(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    form = formats.of_template(tokenizer.template)
    if form is formats.HERMES or tokenizer.spelled is None:
        return tokenizer.decode(ids)
    own = ids[:-1] if ids[-1] == _end(tokenizer) else ids
    return formats.canonical(form, tokenizer.spelled(own))


def _joint(tokenizer: Tokenizer, last: int, messages: Sequence[Message]) -> Joint:
    turn = "\ue002"
    before = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": turn}]
    text = _rendered(tokenizer, [*before, *_marked(messages)])
    if text.count(turn) != 1:
        raise ValueError(f"the chat template writes a turn {text.count(turn)} times; it must once")
    ids = tuple(_ids(tokenizer, text.partition(turn)[2], messages))
    if ids[0] not in tokenizer.eos_ids:
        raise ValueError(
            f"the chat template ends a turn with token {ids[0]}, which does not end a sequence"
        )
    return Joint(() if last == ids[0] else ids[:1], ids[1:])


@functools.lru_cache(maxsize=4)
def _end(tokenizer: Tokenizer) -> int:
    """The token with which the template ends a turn."""
    return _joint(tokenizer, -1, [{"role": "user", "content": "Hello"}]).close[0]


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with numbers in place of what they say."""
    return [{**m, "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)]


def _rendered(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> str:
    import jinja2

    try:
        return tokenizer.render(messages, list(tools) or None, add_generation_prompt=True).text
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template refuses a conversation: {error}") from error


def _ids(tokenizer: Tokenizer, text: str, messages: Sequence[Message]) -> list[int]:
    """Ids of a rendered text, with what the messages say in place of their numbers."""
    pieces = _MARK.split(text)
    if [int(piece) for piece in pieces[1::2]] != list(range(len(messages))):
        raise ValueError("the chat template leaves out a message, or changes their order")
    said = [message["content"] for message in messages]
    if all(tokenizer.plain(each) == tokenizer.encode(each) for each in said):
        return tokenizer.encode(_MARK.sub(lambda found: said[int(found[1])], text))
    out = tokenizer.encode(pieces[0])
    for each, after in zip(said, pieces[2::2], strict=True):
        out += [*tokenizer.plain(each), *tokenizer.encode(after)]
    return out


def _differs(tokenizer: Tokenizer, made: Dialogue, turns: Sequence[Message]) -> str:
    """How a conversation in parts differs from the same one encoded at once; empty: nowhere."""
    first = next(i for i, turn in enumerate(turns) if turn["role"] == "assistant")
    try:
        whole = tokenizer.encode(_rendered(tokenizer, turns))
        start = made.opening(turns[:first])
        if tuple(whole[: len(start)]) != start:
            return "its opening changes once a turn follows"
        at = len(start)
        for i in (i for i, turn in enumerate(turns) if turn["role"] == "assistant"):
            rest = itertools.takewhile(lambda turn: turn["role"] != "assistant", turns[i + 1 :])
            given = list(rest)
            at = next(n for n in range(at, len(whole)) if whole[n] in tokenizer.eos_ids)
            ended, cut = made.joint(whole[at], given), made.joint(-1, given)
            if ended.close or cut != Joint((whole[at],), ended.more):
                return "a turn that was cut off is not ended as others are"
            at += 1
            if tuple(whole[at : at + len(ended.more)]) != ended.more:
                return f"other tokens follow turn {i}"
            at += len(ended.more)
        if at != len(whole):
            return "tokens are missing at its end"
        return _spelled_out(tokenizer, made, given, ended)
    except (ValueError, StopIteration) as error:
        return str(error) or "a turn has no token that ends it"


def _spelled_out(
    tokenizer: Tokenizer, made: Dialogue, given: Sequence[Message], ended: Joint
) -> str:
    """Whether messages that spell out the template's own tokens bring any of them in."""
    hostile = _rendered(tokenizer, [{"role": "user", "content": "Hello"}])
    said = [{**message, "content": hostile} for message in given]
    more = made.joint(-1, said).more
    special = {i for i in ended.more if not tokenizer.decode([i])} | set(tokenizer.eos_ids)
    if sum(i in special for i in more) != sum(i in special for i in ended.more):
        return "special tokens that a message spells out are not encoded as text"
    return ""
