"""The proof that a chat template can be continued turn by turn, on conversations of several turns.

A conversation in parts must have the tokens of the same one encoded at once, and what messages from
outside spell out must bring in none of the template's own.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jaxrl.data.environments import Message
from jaxrl.data.environments.tools import formats
from jaxrl.data.text import rendering, untrusted_text
from jaxrl.data.text.rendering import Joint
from jaxrl.data.text.tokenizers import Tokenizer

PLAIN = "turns and replies"
SYSTEM = "a system message"
ROW = "several messages in a row"
"""Patterns of conversations."""
REMEDIES = {
    SYSTEM: "say it at the head of the first message of the user",
    ROW: "say them in one message",
}


def patterns(messages: Sequence[Message]) -> set[str]:
    """The patterns that a conversation has, besides the plain one."""
    roles = [message["role"] for message in messages]
    is_input = [role not in ("assistant", "system") for role in roles]
    system = {SYSTEM} if "system" in roles[:1] else set()
    return system | ({ROW} if any(a and b for a, b in itertools.pairwise(is_input)) else set())


_TOOL: Mapping[str, Any] = {
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
_CALL = formats.write_call(formats.Call("look_up", {"word": "tree"}))
_REASONING = "<think>\nHm.\n</think>\n\n"


def begins_anew(tokenizer: Tokenizer, roles: tuple[str, ...], offers: Collection[bool]) -> bool:
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


def prove(
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
    schemas = (_TOOL,) if tools else ()
    reasoned = (f"{_REASONING}Yes", f"{_REASONING}No, 7.")
    answers = [reasoned, (_CALL if tools else "Yes", "No, 7.")]
    if _begins_reasoning(tokenizer, schemas):
        answers = [reasoned]
    elif _led(tokenizer) == "":
        answers = answers[1:]
    problems: dict[str, str] = {}
    for pattern, turns in (t for pair in answers[::-1] for t in _conversations(roles, pair)):
        if not problems.keys().isdisjoint({pattern, *patterns(turns)}):
            continue
        if problem := _differs(tokenizer, turns, schemas, anew=anew):
            if pattern == PLAIN:
                return {PLAIN: f"{problem}, in the conversation {turns}"}
            problems[pattern] = problem
    return problems


def _begins_reasoning(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> bool:
    question = [{"role": "user", "content": "Hello"}]
    return untrusted_text.rendered(tokenizer, question, tools).rstrip().endswith("<think>")


def _conversations(roles: Sequence[str], answers: Sequence[str]) -> list[tuple[str, list[Message]]]:
    """What a template is tried on: turns followed by messages of the roles, by pattern.

    One or two messages follow at once, and some have white space at their ends.
    """
    replies = ["Go on.", "42", "two\n\nlines", '{"a": [1, 2]}']
    spaced = ["  spaces \n", "\n\nlines\n"]
    shapes = [(PLAIN, "", "Hello", replies, 1), (PLAIN, "", "Hello \n", spaced, 1)]
    shapes += [(ROW, "", "\tHello", [*replies, *spaced], 2)]
    shapes += [(SYSTEM, "Be brief.\n", "Hello", replies, together) for together in (1, 2)]
    conversations: list[tuple[str, list[Message]]] = []
    for role, (pattern, system, question, contents, together) in itertools.product(roles, shapes):
        texts = itertools.cycle(contents)
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": question})
        for answer in answers:
            turns.append({"role": "assistant", "content": answer})
            turns += [{"role": role, "content": next(texts)} for _ in range(together)]
        conversations.append((pattern, turns))
    return conversations


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
    replies = list(rest)[::-1]
    try:
        if tools and rendering.led(tokenizer) == rendering.FINAL:
            return "it writes calls as answers"
        if anew or rendering.kept(tokenizer, turns, tools) != turns:
            for end in [*starts[1:] * anew, len(turns)]:
                full_ids = _whole(tokenizer, turns[:end], tools)
                kept_turns = rendering.kept(tokenizer, turns[:end], tools)
                if rendering.opening(tokenizer, kept_turns, tools) != full_ids:
                    return "it changes more than that it leaves out reasoning"
            write = functools.partial(rendering.opening, tokenizer, tools=tools)
            if anew and (problem := _spelled_out(tokenizer, write, kept_turns)):
                return problem
            return _spelled_out(tokenizer, _more(tokenizer, tools), replies)
        full_ids = _whole(tokenizer, turns, tools)
        start = rendering.opening(tokenizer, turns[: starts[0]], tools)
        if full_ids[: len(start)] != start:
            return "its opening changes once a turn follows"
        at = len(start)
        for i in starts:
            rest = itertools.takewhile(lambda turn: turn["role"] != "assistant", turns[i + 1 :])
            replies = list(rest)
            at = next(n for n in range(at, len(full_ids)) if full_ids[n] in tokenizer.eos_ids)
            ended, cut = (
                rendering.joint(tokenizer, last, replies, tools) for last in (full_ids[at], -1)
            )
            if ended.close or cut != Joint((full_ids[at],), ended.more):
                return "a turn that was cut off is not ended as others are"
            at += 1
            if full_ids[at : at + len(ended.more)] != ended.more:
                return f"other tokens follow turn {i}"
            at += len(ended.more)
        if at != len(full_ids):
            return "tokens are missing at its end"
        return _spelled_out(tokenizer, _more(tokenizer, tools), replies)
    except (ValueError, StopIteration) as error:
        return str(error) or "a turn has no token that ends it"


def _whole(
    tokenizer: Tokenizer, turns: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    """Ids of a conversation that is encoded at once."""
    conversation, template_tools = rendering.with_tools(tokenizer, turns, tools)
    taught_turns = rendering.in_template_form(tokenizer, conversation, template_tools)
    return tuple(tokenizer.encode(untrusted_text.rendered(tokenizer, taught_turns, template_tools)))


def _more(
    tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]
) -> Callable[[Sequence[Message]], Sequence[int]]:
    return lambda messages: rendering.joint(tokenizer, -1, messages, tools).more


def _spelled_out(
    tokenizer: Tokenizer,
    write: Callable[[Sequence[Message]], Sequence[int]],
    messages: Sequence[Message],
) -> str:
    """Whether messages that spell out the template's own tokens bring any of them in.

    Args:
      tokenizer: of the model.
      write: messages to ids.
      messages: those that are `untrusted_text.trusted` stay.
    """
    clean_ids = write(messages)
    hostile = untrusted_text.rendered(tokenizer, [{"role": "user", "content": "Hello"}])
    hostile += tokenizer.spelled(clean_ids)
    pairs = zip(messages, untrusted_text.trusted(messages), strict=True)
    hostile_ids = write([m if inside else {**m, "content": hostile} for m, inside in pairs])
    if sum(_is_marker(tokenizer, i) for i in hostile_ids) != sum(
        _is_marker(tokenizer, i) for i in clean_ids
    ):
        return "special tokens that a message spells out are not encoded as text"
    return ""


_TAG = re.compile(r"[^\w\s].*[^\W\d_].*[^\w\s]", re.DOTALL)


@functools.lru_cache(maxsize=1 << 16)
def _is_marker(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token stands for more than its text: it is special, or added, or spelled as a tag.

    The last does not rely on what `Tokenizer.plain` takes for text, which is what is proved.
    """
    if token in tokenizer.eos_ids or untrusted_text.special(tokenizer, token):
        return True
    tag = _TAG.fullmatch(tokenizer.spelled([token])) is not None
    return tag or untrusted_text.added(tokenizer, token)
