"""A conversation as tokens, turn by turn; one that goes on keeps the ids that the policy wrote.

What is appended after a turn is what the chat template writes between the end of an assistant's
turn and the beginning of the next. Earlier turns are encoded again only where the conversation
begins anew: where an environment replaces it, and with some templates, see below. `proof` shows on
conversations of several turns that this gives the tokens of the whole conversation, and refuses a
template for which it does not. Some patterns a task may never have: a system message, several
messages in a row. Where the template does not carry one of them, a conversation that has it is
refused when it occurs.

A text from outside that spells out special or other added tokens is encoded as text. Where the
template leaves the reasoning of earlier turns out of a new prompt, the conversation begins anew
with that prompt. It does so after every turn where the template writes earlier turns otherwise than
it asks for them: without the empty thought that it begins an answer with, or, in harmony, as a
final answer alone. So it does where a template moves a system message or the tools to the last
message of the user.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.environments import Message
from jaxrl.data.environments.tools import formats
from jaxrl.data.sources import extract
from jaxrl.data.text import rendering, template_check, untrusted_text
from jaxrl.data.text.rendering import Joint
from jaxrl.data.text.tokenizers import Tokenizer


class Dialogue(NamedTuple):
    """How a conversation becomes tokens."""

    opening: Callable[..., tuple[int, ...]]
    """`(messages, tools=())`: ids up to where the policy writes its first turn. Where the template
    does not show the tools, a system message explains them."""
    joint: Callable[..., Joint]
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
    """Whether conversations are not continued after a turn: each is then written as an opening."""


@functools.lru_cache(maxsize=4)
def of_model(
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

    offers = sorted({False, tools})
    anew = template_check.begins_anew(tokenizer, roles, offers)
    for offered in offers:
        template_check.prove(tokenizer, roles, tools=offered, anew=anew)

    def refuse(patterns: Collection[str], tools: Sequence[Mapping[str, Any]]) -> None:
        refused = template_check.prove(tokenizer, roles, tools=bool(tools), anew=anew)
        for pattern in sorted(refused.keys() & patterns):
            raise ValueError(
                f"the conversation has {pattern}, which the chat template does not carry: "
                f"{refused[pattern]}; {template_check.REMEDIES[pattern]}, or use another template"
            )

    def opening(
        messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        refuse(template_check.patterns(messages), tools)
        return rendering.opening(tokenizer, messages, tools)

    def joint(
        last: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Joint:
        refuse({template_check.ROW} if len(messages) > 1 else (), tools)
        return rendering.joint(tokenizer, last, messages, tools)

    parts = (functools.partial(part, tokenizer) for part in (_action, _turn_ids, rendering.kept))
    return Dialogue(opening, joint, rendering.end(tokenizer), *parts, anew=anew)


def _in_lines(tokenizer: Tokenizer) -> Dialogue:
    end = tokenizer.eos_ids[0]
    plain = tokenizer.plain or tokenizer.encode

    def lines(messages: Sequence[Message]) -> str:
        return "".join(message["content"] + "\n" for message in messages)

    def opening(
        messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        ids = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        guarded_tools, guard = untrusted_text.guarded(tokenizer, tools, messages)
        conversation = rendering.explained(messages, guarded_tools)
        text = lines(conversation)
        if not guard.within(text) and plain(text) == tokenizer.encode(text):
            return (*ids, *plain(text))
        pairs = zip(untrusted_text.trusted(conversation), conversation, strict=True)
        for inside, run in itertools.groupby(pairs, lambda pair: pair[0]):
            run_text = lines([message for _, message in run])
            encode = (
                functools.partial(untrusted_text.encode_trusted, tokenizer) if inside else plain
            )
            ids += untrusted_text.encode_guarded(tokenizer, run_text, guard, encode)
        return tuple(ids)

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
    text_ids = ids[:-1] if ids[-1] in tokenizer.eos_ids else ids
    text = _thought(tokenizer, before, tokenizer.spelled(text_ids))
    return formats.canonical(form, text, tools)


def answer(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """What rewards read of a single answer that a chat template asks for.

    A thought that was begun before it has its `<think>`. In harmony it is the final message, empty
    where none has begun.

    Args:
      tokenizer: of the model.
      before: ids that precede the answer, its prompt or the end of it.
      ids: of the answer.
    """
    form = formats.of_template(tokenizer.template)
    if form.name == "harmony" and tokenizer.spelled is not None:
        ended = bool(ids) and ids[-1] in tokenizer.eos_ids
        text = tokenizer.spelled(ids[:-1] if ended else ids)
        if any(mark in text for mark in form.marks):
            return form.read(text)[0].strip()
    return _thought(tokenizer, before, tokenizer.decode(ids))


def _thoughtless(tokenizer: Tokenizer, before: Sequence[int], text: str) -> str:
    """A turn that ends the thought which what precedes it begins, unless it does."""
    in_thought = _thought(tokenizer, before, "") != ""
    return f"</think>{text}" if in_thought and "</think>" not in text else text


def _turn_ids(
    tokenizer: Tokenizer,
    before: Sequence[int],
    action: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[int, ...]:
    harmony = rendering.led(tokenizer) == rendering.FINAL
    if harmony or (tools and _shown(tokenizer, tools)):
        form = formats.of_template(tokenizer.template)
        action = formats.to_template_form(form, action, tools, tokenizer.template)
    turn_ids = tokenizer.encode(_thoughtless(tokenizer, before, action))
    ended = bool(turn_ids) and turn_ids[-1] in tokenizer.eos_ids
    return tuple(turn_ids) if ended else (*turn_ids, rendering.end(tokenizer))


def _shown(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the chat template shows tools."""
    question = [{"role": "user", "content": "Hello"}]
    return untrusted_text.rendered(tokenizer, question, tools) != untrusted_text.rendered(
        tokenizer, question
    )
