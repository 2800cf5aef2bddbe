"""A conversation as tokens, turn by turn; one that goes on keeps the ids that the policy wrote.

What is appended after a turn is what the chat template writes between the end of an assistant's
turn and the beginning of the next. Earlier turns are encoded again only where the conversation
begins anew: where an environment replaces it, and with some templates, see below. `of` proves on
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
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
    """Whether conversations are not continued after a turn: each is then written as an opening."""


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

    offers = sorted({False, tools})
    anew = _anew(tokenizer, roles, offers)
    for offered in offers:
        _prove(tokenizer, roles, tools=offered, anew=anew)

    def refuse(found: Collection[str], tools: Sequence[Mapping[str, Any]]) -> None:
        refused = _prove(tokenizer, roles, tools=bool(tools), anew=anew)
        for pattern in sorted(refused.keys() & found):
            raise ValueError(
                f"the conversation has {pattern}, which the chat template does not carry: "
                f"{refused[pattern]}; {_REMEDIES[pattern]}, or use another template"
            )

    def opening(
        messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        refuse(_patterns(messages), tools)
        return rendering.opening(tokenizer, messages, tools)

    def joint(
        last: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Joint:
        refuse({ROW} if len(messages) > 1 else (), tools)
        return rendering.joint(tokenizer, last, messages, tools)

    parts = (functools.partial(each, tokenizer) for each in (_action, _turn_ids, rendering.kept))
    return Dialogue(opening, joint, rendering.end(tokenizer), *parts, anew=anew)


PLAIN = "turns and replies"
SYSTEM = "a system message"
ROW = "several messages in a row"
"""Patterns of conversations."""
_REMEDIES = {
    SYSTEM: "say it at the head of the first message of the user",
    ROW: "say them in one message",
}


def _patterns(messages: Sequence[Message]) -> set[str]:
    """The patterns that a conversation has, beside the plain one."""
    roles = [message["role"] for message in messages]
    told = [role not in ("assistant", "system") for role in roles]
    found = {SYSTEM} if "system" in roles[:1] else set()
    return found | ({ROW} if any(a and b for a, b in itertools.pairwise(told)) else set())


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


def _anew(tokenizer: Tokenizer, roles: tuple[str, ...], offers: Collection[bool]) -> bool:
    """Whether each turn of a template begins a context.

    It does where an earlier turn is written otherwise than it was asked for, and where that carries
    tools or patterns that cannot be continued. A plain conversation without tools must continue: a
    template that cannot do that has a fault, such as a separator that it loses.

    Args:
      tokenizer: of the model.
      roles: of the messages that follow a turn.
      offers: whether openings offer tools, and whether some do not.
    """
    if _led(tokenizer) is not None:
        return True
    if PLAIN in _tried(tokenizer, roles, tools=False, anew=False):
        return False

    def more(offered: bool) -> bool:
        problems = _tried(tokenizer, roles, tools=offered, anew=False)
        left = _tried(tokenizer, roles, tools=offered, anew=True) if problems else {}
        return PLAIN not in left and (PLAIN in problems or left.keys() < problems.keys())

    return any(map(more, offers))


def _led(tokenizer: Tokenizer) -> str | None:
    try:
        return rendering.led(tokenizer)
    except ValueError:  # it refuses a conversation, which is then named
        return None


def _prove(
    tokenizer: Tokenizer, roles: tuple[str, ...], *, tools: bool, anew: bool
) -> Mapping[str, str]:
    """The patterns that a template does not carry, and why.

    Raises:
      ValueError: the plain one is among them.
    """
    problems = _tried(tokenizer, roles, tools=tools, anew=anew)
    if PLAIN not in problems:
        return problems
    raise ValueError(
        f"the chat template cannot be continued turn by turn{' with tools' * tools}: "
        f"{problems[PLAIN]}; use another template, "
        f"{'' if roles == ('user',) else 'give results another role, '}or rollout.chat=False"
    )


@functools.lru_cache(maxsize=32)
def _tried(
    tokenizer: Tokenizer, roles: tuple[str, ...], *, tools: bool, anew: bool
) -> Mapping[str, str]:
    """What is wrong with a template, by pattern; of the plain one alone, if that is wrong.

    It is tried on conversations, with tools or without, and with reasoning, unless it begins an
    answer with an empty thought. A turn that thinks all the same is shown as it was written.
    """
    given = (TOOL,) if tools else ()
    reasoned = (f"{_REASONING}Yes", f"{_REASONING}No, 7.")
    answers = [reasoned, (_CALL if tools else "Yes", "No, 7.")]
    if _begins_reasoning(tokenizer, given):
        answers = [reasoned]
    elif _led(tokenizer) == "":
        answers = answers[1:]
    problems: dict[str, str] = {}
    for pattern, turns in (t for each in answers[::-1] for t in conversations(roles, each)):
        if not problems.keys().isdisjoint({pattern, *_patterns(turns)}):
            continue
        if problem := _differs(tokenizer, turns, given, anew=anew):
            if pattern == PLAIN:
                return {PLAIN: f"{problem}, in the conversation {turns}"}
            problems[pattern] = problem
    return problems


def _begins_reasoning(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> bool:
    asked = [{"role": "user", "content": "Hello"}]
    return rendering.rendered(tokenizer, asked, tools).rstrip().endswith("<think>")


def conversations(roles: Sequence[str], answers: Sequence[str]) -> list[tuple[str, list[Message]]]:
    """What a template is tried on: turns followed by messages of the roles, by pattern.

    One or two messages follow at once, and some have white space at their ends.
    """
    said = ["Go on.", "42", "two\n\nlines", '{"a": [1, 2]}']
    spaced = ["  spaces \n", "\n\nlines\n"]
    shapes = [(PLAIN, "", "Hello", said, 1), (PLAIN, "", "Hello \n", spaced, 1)]
    shapes += [(ROW, "", "\tHello", [*said, *spaced], 2)]
    shapes += [(SYSTEM, "Be brief.\n", "Hello", said, together) for together in (1, 2)]
    found: list[tuple[str, list[Message]]] = []
    for role, (pattern, system, asked, given, together) in itertools.product(roles, shapes):
        texts = itertools.cycle(given)
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": asked})
        for answer in answers:
            turns.append({"role": "assistant", "content": answer})
            turns += [{"role": role, "content": next(texts)} for _ in range(together)]
        found.append((pattern, turns))
    return found


def _in_lines(tokenizer: Tokenizer) -> Dialogue:
    end = tokenizer.eos_ids[0]
    plain = tokenizer.plain or tokenizer.encode

    def lines(messages: Sequence[Message]) -> str:
        return "".join(message["content"] + "\n" for message in messages)

    def opening(
        messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        ids = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        shown, guard = rendering.guarded(tokenizer, tools, messages)
        told = rendering.explained(messages, shown)
        text = lines(told)
        if not guard.within(text) and plain(text) == tokenizer.encode(text):
            return (*ids, *plain(text))
        pairs = zip(rendering.trusted(told), told, strict=True)
        for inside, run in itertools.groupby(pairs, lambda pair: pair[0]):
            said = lines([message for _, message in run])
            encode = functools.partial(rendering.encode_trusted, tokenizer) if inside else plain
            ids += rendering.encode_guarded(tokenizer, said, guard, encode)
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
    tokenizer: Tokenizer,
    turns: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    anew: bool,
) -> str:
    """How a conversation in parts differs from the same one encoded at once; empty: nowhere.

    Args:
      tokenizer: of the model.
      turns: the conversation.
      tools: that it offers.
      anew: each turn begins a context.
    """
    starts = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    rest = itertools.takewhile(lambda turn: turn["role"] != "assistant", turns[::-1])
    given = list(rest)[::-1]
    try:
        if tools and rendering.led(tokenizer) == rendering.FINAL:
            return "it writes calls as answers"
        if anew or rendering.kept(tokenizer, turns, tools) != turns:
            for end in [*starts[1:] * anew, len(turns)]:
                whole = _whole(tokenizer, turns[:end], tools)
                kept = rendering.kept(tokenizer, turns[:end], tools)
                if rendering.opening(tokenizer, kept, tools) != whole:
                    return "it changes more than that it leaves out reasoning"
            write = functools.partial(rendering.opening, tokenizer, tools=tools)
            if anew and (problem := _spelled_out(tokenizer, write, kept)):
                return problem
            return _spelled_out(tokenizer, _more(tokenizer, tools), given)
        whole = _whole(tokenizer, turns, tools)
        start = rendering.opening(tokenizer, turns[: starts[0]], tools)
        if whole[: len(start)] != start:
            return "its opening changes once a turn follows"
        at = len(start)
        for i in starts:
            rest = itertools.takewhile(lambda turn: turn["role"] != "assistant", turns[i + 1 :])
            given = list(rest)
            at = next(n for n in range(at, len(whole)) if whole[n] in tokenizer.eos_ids)
            ended, cut = (
                rendering.joint(tokenizer, last, given, tools) for last in (whole[at], -1)
            )
            if ended.close or cut != Joint((whole[at],), ended.more):
                return "a turn that was cut off is not ended as others are"
            at += 1
            if whole[at : at + len(ended.more)] != ended.more:
                return f"other tokens follow turn {i}"
            at += len(ended.more)
        if at != len(whole):
            return "tokens are missing at its end"
        return _spelled_out(tokenizer, _more(tokenizer, tools), given)
    except (ValueError, StopIteration) as error:
        return str(error) or "a turn has no token that ends it"


def _whole(
    tokenizer: Tokenizer, turns: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    """Ids of a conversation that is encoded at once."""
    told, shown = rendering.told(tokenizer, turns, tools)
    said = rendering.taught(tokenizer, told, shown)
    return tuple(tokenizer.encode(rendering.rendered(tokenizer, said, shown)))


def _more(
    tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]
) -> Callable[[Sequence[Message]], Sequence[int]]:
    return lambda said: rendering.joint(tokenizer, -1, said, tools).more


def _spelled_out(
    tokenizer: Tokenizer,
    write: Callable[[Sequence[Message]], Sequence[int]],
    given: Sequence[Message],
) -> str:
    """Whether messages that spell out the template's own tokens bring any of them in.

    Args:
      tokenizer: of the model.
      write: messages to ids.
      given: the messages; those that are `rendering.trusted` stay.
    """
    more = write(given)
    hostile = rendering.rendered(tokenizer, [{"role": "user", "content": "Hello"}])
    hostile += tokenizer.spelled(more)
    kept = zip(given, rendering.trusted(given), strict=True)
    other = write([m if inside else {**m, "content": hostile} for m, inside in kept])
    if sum(_is_marker(tokenizer, i) for i in other) != sum(_is_marker(tokenizer, i) for i in more):
        return "special tokens that a message spells out are not encoded as text"
    return ""


_TAG = re.compile(r"[^\w\s].*[^\W\d_].*[^\w\s]", re.DOTALL)


@functools.lru_cache(maxsize=1 << 16)
def _is_marker(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token stands for more than its text: it is special, or added, or spelled as a tag.

    The last does not rely on what `Tokenizer.plain` takes for text, which is what is proved.
    """
    if token in tokenizer.eos_ids or rendering.special(tokenizer, token):
        return True
    tag = _TAG.fullmatch(tokenizer.spelled([token])) is not None
    return tag or rendering.added(tokenizer, token)
