"""Which tokens of a conversation the assistant wrote, seen from what its chat template writes.

What is learned of a turn are the assistant's words and the one token that ends it. Where the
template ends no turn with such a token, it is the text of the turn alone, see `learns_to_stop`. A
conversation is refused where some turns are ended and others are not, or where the template leaves
out what somebody says.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.data.text.chat import Render, Span
from jaxrl.data.text.messages import Message, normal
from jaxrl.data.text.tokenizer_backends import Backend


class Conversation(NamedTuple):
    """A whole conversation as tokens."""

    ids: list[int]
    assistant: list[bool]
    """Which of them the assistant wrote, the token that ends its turn included."""


class Ends(NamedTuple):
    """Tokens that end a turn."""

    last: Collection[int]
    """Of a conversation."""
    earlier: Collection[int]
    """That another turn follows."""


class _Text(NamedTuple):
    """A conversation as the template writes it."""

    text: str
    ids: Sequence[int]
    spans: Sequence[Span]
    """The characters of each token."""

    def from_character(self, place: int) -> int:
        """The first token that begins at a character or after it."""
        return bisect.bisect_left([start for start, _ in self.spans], place)


def conversation(
    render: Render,
    backend: Backend,
    ends: Ends,
    messages: Sequence[Message],
    tools: Any = None,
    *,
    start: int = 0,
    **variables: Any,
) -> Conversation:
    """A conversation and what is learned of it.

    Args:
      render: the chat template.
      backend: of the tokenizer.
      ends: tokens that end a turn.
      messages: of the conversation.
      tools: JSON schemas that it offers.
      start: the first message that may be learned; earlier ones are a prompt.
      **variables: of the template.

    Raises:
      ValueError: the template leaves out what somebody says, or ends a turn with no token that
        ends a sequence.
    """
    turns = [normal(message, strict=False) for message in messages]
    text, generated = render(turns, tools, **variables)
    ids, spans = backend.encode(text)
    encoding = _Text(text, ids, spans)
    learned = [
        place
        for place, turn in enumerate(turns)
        if turn["role"] == "assistant" and place >= start and turn.get("weight", 1)
    ]
    check_complete(text, turns, learned, tools)
    marks = [False] * len(ids)
    if generated is not None:
        chosen = _generated(generated, turns, learned)
        parts = [_by_marks(encoding, span, ends, backend) for span in chosen]
    else:
        write = _writer(render, turns, tools, variables)
        parts = [_by_text(encoding, write, turns, place, ends, backend) for place in learned]
    closing = {*ends.last, *ends.earlier}
    if len({ids[last] in closing for _, last in parts}) > 1:
        raise ValueError(
            "the chat template ends some turns of the assistant with a token that ends a sequence, "
            "and others without one; write {{ eos_token }} after each of the assistant's messages"
        )
    for first, last in parts:
        marks[first : last + 1] = [True] * (last + 1 - first)
    return Conversation(ids, marks)


def _writer(
    render: Render, turns: Sequence[Message], tools: Any, variables: Mapping[str, Any]
) -> Callable[[int, bool], str]:
    """`(count, ask)`: the text of the first messages, with the beginning of an answer or not."""
    return lambda count, ask: (
        render(turns[:count], tools, add_generation_prompt=ask, **variables).text
    )


def _generated(
    spans: Sequence[Span], turns: Sequence[Message], learned: Sequence[int]
) -> list[Span]:
    """The marked spans of the turns to learn."""
    places = [place for place, turn in enumerate(turns) if turn["role"] == "assistant"]
    if len(spans) == len(places):
        return [span for span, place in zip(spans, places, strict=True) if place in learned]
    if any(turn.get("weight", 1) == 0 for turn in turns):
        raise ValueError(
            f"the chat template marks {len(spans)} parts of {len(places)} turns, so a message with "
            "weight 0 cannot be told; leave such rows out"
        )
    return list(spans)


def _by_marks(encoding: _Text, span: Span, ends: Ends, backend: Backend) -> tuple[int, int]:
    """The tokens of a span that the template marks, with the one that ends the turn."""
    start, stop = span
    inside = [n for n, (s, e) in enumerate(encoding.spans) if s < stop and e > start]
    if not inside:
        raise ValueError("the chat template marks no text of a turn as the assistant's")
    closing = {*ends.last, *ends.earlier}
    first, last = inside[0], inside[-1]
    while (
        last > first
        and encoding.ids[last] not in closing
        and not _seen(backend, encoding.ids[last])
    ):
        last -= 1  # white space after the end of the turn
    if encoding.ids[last] in closing:
        return first, last
    last = inside[-1]
    if last + 1 < len(encoding.ids) and encoding.ids[last + 1] in closing:
        return first, last + 1
    return inside[0], inside[-1]


NO_END = (
    "the chat template ends a turn of the assistant with no token that ends a sequence, so the "
    "model does not learn to stop; write {{ eos_token }} after the content of the assistant's "
    "messages in the template, or list the token that ends a turn in eos_token_id of "
    "generation_config.json"
)
"""What to say of a template for which `learns_to_stop` does not hold."""


def _by_text(
    encoding: _Text,
    write: Callable[[int, bool], str],
    turns: Sequence[Message],
    place: int,
    ends: Ends,
    backend: Backend,
) -> tuple[int, int]:
    """The tokens of a turn, from what precedes it to the token that ends it."""
    lead = write(place, True)
    if not encoding.text.startswith(lead):
        raise ValueError(_other_lead(encoding.text, lead, write(place, False), place))
    last_turn = place == len(turns) - 1
    limit = encoding.from_character(_limit(encoding.text, write, turns, place, len(lead)))
    first = encoding.from_character(len(lead))
    closing = ends.last if last_turn else ends.earlier
    last = next((n for n in range(first, limit) if encoding.ids[n] in closing), None)
    text = write(place + 1, False)
    if last is None:
        if not encoding.text.startswith(text):
            raise ValueError(f"message {place}: {NO_END}")
        return first, limit - 1
    if encoding.text.startswith(text):
        lost = [i for i in encoding.ids[last + 1 : limit] if _seen(backend, i)]
        if lost:
            raise ValueError(
                f"message {place} spells out {backend.spelled([encoding.ids[last]])!r}, which ends "
                f"a turn, so {backend.spelled(lost)!r:.60} would be lost; take it out of the text"
            )
    return first, last


def _limit(
    text: str,
    write: Callable[[int, bool], str],
    turns: Sequence[Message],
    place: int,
    lead: int,
) -> int:
    """The character by which a turn has ended."""
    if place == len(turns) - 1:
        return len(text)
    ended = write(place + 1, False)
    if text.startswith(ended):
        return len(ended)
    answer = turns[place]["content"].rpartition("</think>")[2].strip()
    after = max(text.find(answer, lead), lead) + len(answer)
    following = turns[place + 1]["content"].strip()
    begin = text.find(following, after) if following else -1
    return begin if begin >= 0 else len(text)


def _other_lead(text: str, lead: str, before: str, place: int) -> str:
    """Why the beginning of an answer is not what precedes the answer."""
    if text.startswith(before) and lead.startswith(before):
        return (
            f"the chat template asks for an answer with {lead[len(before) :]!r}, and writes "
            f"that of message {place} without it, so the assistant's tokens cannot be "
            "distinguished; choose a template or its variables "
            "(--rollout.template-args.enable-thinking false) so that both are the same"
        )
    return (
        f"the chat template writes what precedes message {place} otherwise once more follows it, "
        "so the assistant's tokens cannot be distinguished; train on conversations that end with "
        "the turn to learn"
    )


def _seen(backend: Backend, token: int) -> bool:
    """Whether a token is text that is no white space."""
    return bool(backend.decode([token]).strip())


def check_complete(
    text: str, turns: Sequence[Message], learned: Collection[int], tools: Any
) -> None:
    """Refuse a conversation of which the template leaves something out.

    Thoughts of turns that are not learned may be left out, as templates do on purpose.

    Raises:
      ValueError: naming what is lost.
    """
    flat = _Flat(text)
    for place, turn in enumerate(turns):
        content = turn["content"]
        thought = str(turn.get("reasoning_content", ""))
        if turn["role"] == "assistant" and place not in learned:
            content, thought = content.rpartition("</think>")[2], ""
        parts = [("text", part) for part in re.split(r"</?think>", content)]
        parts.append(("thought", thought))
        for call in turn.get("tool_calls", ()):
            parts.append(("call of", str(call["function"]["name"])))
        for what, part in parts:
            if part.strip() and not flat.holds(part):
                raise ValueError(
                    f"the chat template leaves out the {what} {part.strip()!r:.60} of message "
                    f"{place} ({turn['role']}); take it out of the row, or use another template"
                )
    for tool in tools or ():
        if not flat.holds(name := str(tool["function"]["name"])):
            raise ValueError(
                f"the chat template does not show the tool {name!r}; use a template that knows "
                "tools, or ignore the column with --data.columns.tools ''"
            )


class _Flat:
    """A text in which parts are looked for, whatever white space or quoting they have."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._flat: str | None = None

    def holds(self, part: str) -> bool:
        """Whether the text has the part."""
        part = part.strip()
        if part in self._text:
            return True
        if self._flat is None:
            self._flat = " ".join(self._text.split())
        quoted = (json.dumps(part, ensure_ascii=narrow)[1:-1] for narrow in (False, True))
        forms = [" ".join(form.split()) for form in (part, *quoted)]
        return any(form in self._flat for form in forms)
