"""A conversation as tokens, turn by turn, in which nothing that the policy wrote is encoded again.

The ids of a turn are the policy's own. What is appended after it is what the chat template writes
between the end of an assistant's turn and the beginning of the next. `of` proves on conversations
of several turns that this gives the tokens of the whole conversation, and refuses a template for
which it does not.

A text from outside that spells out special tokens is encoded as text. Where the template leaves the
reasoning of earlier turns out of a new prompt, the conversation goes on in such a prompt. It does
so after every turn where the template writes earlier turns otherwise than it asks for them: without
the empty thought that it begins an answer with, or, in harmony, as a final answer alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data import extract, rendering
from jaxrl.data.environments import Message, formats
from jaxrl.data.rendering import Joint
from jaxrl.data.tokenizers import Tokenizer


class Dialogue(NamedTuple):
    """How a conversation becomes tokens."""

    opening: Callable[..., tuple[int, ...]]
    """`(messages, tools=())`: ids up to where the policy writes its first turn. Where the template
    does not show the tools, a system message explains them."""
    joint: Callable[[int, Sequence[Message]], Joint]
    """`(last token of a turn, messages, tools=())`: what is appended after the turn."""
    end: int
    """The token that ends a turn."""
    action: Callable[..., str]
    """`(ids before a turn, its ids, tools=())`: the text of the turn as environments read it. Calls
    of tools are in one format, see `formats`, and a thought that was begun before it has its
    `<think>`."""
    ids: Callable[..., tuple[int, ...]]
    """`(ids before a turn, its text as environments read it, tools=())`: the turn as the policy is
    taught to write it, the token that ends it included. A ValueError where it cannot be written."""
    kept: Callable[..., Sequence[Message]] = lambda messages, tools=(): messages
    """`(messages, tools=())`: the conversation without the reasoning that the template leaves out
    of a prompt."""
    anew: bool = False
    """Whether no conversation can be continued after a turn: it is then written as an opening."""


@functools.lru_cache(maxsize=4)
def of(
    tokenizer: Tokenizer, roles: tuple[str, ...], *, chat: bool, tools: bool = False
) -> Dialogue:
    """The dialogue of a model.

    Args:
      tokenizer: of the model.
      roles: of the messages that follow a turn.
      chat: use the model's chat template; else each message is its content and a line break.
      tools: whether its openings may offer tools; if not, the first that does is tried on them.

    Raises:
      ValueError: there is no chat template, or its conversations cannot be continued exactly; the
        message gives the conversation.
    """
    if not chat:
        return _in_lines(tokenizer)
    if tokenizer.render is None:
        raise ValueError("chat is asked for, but this model has no chat template; turn it off")

    def opening(
        messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        _prove(tokenizer, roles, tools=bool(tools))
        return rendering.opening(tokenizer, messages, tools)

    for offered in {False, tools}:
        _prove(tokenizer, roles, tools=offered)
    parts = (functools.partial(each, tokenizer) for each in (_action, _turn_ids, rendering.kept))
    return Dialogue(
        opening,
        functools.partial(rendering.joint, tokenizer),
        rendering.end(tokenizer),
        *parts,
        anew=rendering.led(tokenizer) is not None,
    )


TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "in lower case"}},
            "required": ["word"],
        },
    },
}
"""The tool that a template is tried on."""
_CALL = formats.written(formats.Call("look_up", {"word": "tree"}))
_REASONING = "<think>\nHm.\n</think>\n\n"


@functools.lru_cache(maxsize=16)
def _prove(tokenizer: Tokenizer, roles: tuple[str, ...], *, tools: bool) -> None:
    """Try a template on conversations, with tools or without, and with reasoning, unless it begins
    an answer with an empty thought. A turn that thinks all the same is shown as it was written.

    Raises:
      ValueError: one of them cannot be continued exactly.
    """
    given = (TOOL,) if tools else ()
    reasoned = (f"{_REASONING}Yes", f"{_REASONING}No, 7.")
    answers = [reasoned, (_CALL if tools else "Yes", "No, 7.")]
    if _begins_reasoning(tokenizer, given):
        answers = [reasoned]
    elif _begins_without(tokenizer):
        answers = answers[1:]
    for turns in (t for each in answers[::-1] for t in conversations(roles, each)):
        if problem := _differs(tokenizer, turns, given):
            raise ValueError(
                f"the chat template cannot be continued turn by turn{' with tools' * tools}: "
                f"{problem}, in the conversation {turns}; use another template"
                f"{', give results another role' * tools}, or rollout.chat=False"
            )


def _begins_reasoning(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> bool:
    asked = [{"role": "user", "content": "Hello"}]
    return rendering.rendered(tokenizer, asked, tools).rstrip().endswith("<think>")


def _begins_without(tokenizer: Tokenizer) -> bool:
    try:
        return rendering.led(tokenizer) == ""
    except ValueError:  # it refuses a conversation, which is then named
        return False


def conversations(roles: Sequence[str], answers: Sequence[str]) -> list[list[Message]]:
    """What a template is tried on: turns followed by messages of the roles, one or two at once."""
    said = ["Go on.", "42", "two\n\nlines", '{"a": [1, 2]}']
    found: list[list[Message]] = []
    for role, system in itertools.product(roles, (False, True)):
        for together in (1, 2):
            texts = itertools.cycle(said)
            turns = [{"role": "system", "content": "Be brief."}] if system else []
            turns.append({"role": "user", "content": "Hello"})
            for answer in answers:
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
        return (*lead, *plain(lines(rendering.explained(messages, tools))))

    def joint(
        last: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Joint:
        close = () if last in tokenizer.eos_ids else (end,)
        return Joint(close, tuple(plain("\n" + lines(messages))))

    def action(
        before: Sequence[int], ids: Sequence[int], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        return _thought(tokenizer, before, tokenizer.decode(ids))

    def ids(
        before: Sequence[int], action: str, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        return (*tokenizer.encode(_thoughtless(tokenizer, before, action)), end)

    return Dialogue(opening, joint, end, action, ids)


def _thought(tokenizer: Tokenizer, before: Sequence[int], text: str) -> str:
    """A turn, with the `<think>` that what precedes it ends in."""
    return extract.thinking(tokenizer.decode(list(before[-8:])), text)


def _action(
    tokenizer: Tokenizer,
    before: Sequence[int],
    ids: Sequence[int],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    harmony = rendering.led(tokenizer) == rendering.FINAL
    form = formats.of_template(tokenizer.template) if tools or harmony else formats.HERMES
    if form is formats.HERMES or tokenizer.spelled is None:
        return _thought(tokenizer, before, tokenizer.decode(ids))
    own = ids[:-1] if ids[-1] in tokenizer.eos_ids else ids
    text = _thought(tokenizer, before, tokenizer.spelled(own))
    return formats.canonical(form, text, tools)


def _thoughtless(tokenizer: Tokenizer, before: Sequence[int], text: str) -> str:
    """A turn that ends the thought which what precedes it begins, unless it does."""
    begun = _thought(tokenizer, before, "") != ""
    return f"</think>{text}" if begun and "</think>" not in text else text


def _turn_ids(
    tokenizer: Tokenizer,
    before: Sequence[int],
    action: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[int, ...]:
    harmony = rendering.led(tokenizer) == rendering.FINAL
    if harmony or (tools and _shown(tokenizer, tools)):
        form = formats.of_template(tokenizer.template)
        action = formats.taught(form, action, tools, tokenizer.template)
    own = tokenizer.encode(_thoughtless(tokenizer, before, action))
    ended = bool(own) and own[-1] in tokenizer.eos_ids
    return tuple(own) if ended else (*own, rendering.end(tokenizer))


def _shown(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the chat template shows tools."""
    asked = [{"role": "user", "content": "Hello"}]
    return rendering.rendered(tokenizer, asked, tools) != rendering.rendered(tokenizer, asked)


def _differs(
    tokenizer: Tokenizer, turns: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> str:
    """How a conversation in parts differs from the same one encoded at once; empty: nowhere."""
    first = next(i for i, turn in enumerate(turns) if turn["role"] == "assistant")
    try:
        told, shown = rendering.told(tokenizer, turns, tools)
        whole = tokenizer.encode(
            rendering.rendered(tokenizer, rendering.taught(tokenizer, told, shown), shown)
        )
        kept, led = rendering.kept(tokenizer, turns, tools), rendering.led(tokenizer)
        if tools and led == rendering.FINAL:
            return "it writes calls as answers"
        if kept != turns or led is not None:
            rest = itertools.takewhile(lambda turn: turn["role"] != "assistant", turns[::-1])
            given = list(rest)[::-1]
            ended = rendering.joint(tokenizer, -1, given, tools)
            if rendering.opening(tokenizer, kept, tools) != tuple(whole):
                return "it changes more than that it leaves out reasoning"
            return _spelled_out(tokenizer, given, ended, tools)
        start = rendering.opening(tokenizer, turns[:first], tools)
        if tuple(whole[: len(start)]) != start:
            return "its opening changes once a turn follows"
        at = len(start)
        for i in (i for i, turn in enumerate(turns) if turn["role"] == "assistant"):
            rest = itertools.takewhile(lambda turn: turn["role"] != "assistant", turns[i + 1 :])
            given = list(rest)
            at = next(n for n in range(at, len(whole)) if whole[n] in tokenizer.eos_ids)
            ended, cut = (
                rendering.joint(tokenizer, last, given, tools) for last in (whole[at], -1)
            )
            if ended.close or cut != Joint((whole[at],), ended.more):
                return "a turn that was cut off is not ended as others are"
            at += 1
            if tuple(whole[at : at + len(ended.more)]) != ended.more:
                return f"other tokens follow turn {i}"
            at += len(ended.more)
        if at != len(whole):
            return "tokens are missing at its end"
        return _spelled_out(tokenizer, given, ended, tools)
    except (ValueError, StopIteration) as error:
        return str(error) or "a turn has no token that ends it"


def _spelled_out(
    tokenizer: Tokenizer,
    given: Sequence[Message],
    ended: Joint,
    tools: Sequence[Mapping[str, Any]],
) -> str:
    """Whether messages that spell out the template's own tokens bring any of them in."""
    hostile = rendering.rendered(tokenizer, [{"role": "user", "content": "Hello"}])
    said = [{**message, "content": hostile} for message in given]
    more = rendering.joint(tokenizer, -1, said, tools).more
    special = {i for i in ended.more if not tokenizer.decode([i])} | set(tokenizer.eos_ids)
    if sum(i in special for i in more) != sum(i in special for i in ended.more):
        return "special tokens that a message spells out are not encoded as text"
    return ""
