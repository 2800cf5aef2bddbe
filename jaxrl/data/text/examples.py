"""Rows of a file as tokens: the prompt, what was written, and which of it is learned.

- A text is led by BOS if the model has one and followed by the end-of-sequence token; all but its
  first token is learned.
- A prompt and an answer that are texts are encoded apart, as they are in sampling. The answer and
  the end-of-sequence token after it are learned.
- Messages are written by the model's chat template. Learned are the tokens of each turn of the
  assistant and the token that ends it; where there is a prompt, of the turns after it alone.
- Steps with labels are texts, a line each. The state at the end of each line is scored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from jaxrl.data.sources.parsing import Row
from jaxrl.data.text.messages import Message, Text
from jaxrl.data.text.tokenizers import Tokenizer

Long = Literal["truncate", "drop", "error"]


class Example(NamedTuple):
    """A prompt and one answer to it."""

    prompt: tuple[int, ...]
    """At least one token."""
    tokens: tuple[int, ...]
    learned: tuple[bool, ...]
    """Which of `tokens` are learned."""


def encode(
    tokenizer: Tokenizer, row: Row, *, chat: bool = False, system: str = ""
) -> list[Example]:
    """The answers of a row.

    Args:
      tokenizer: of the model.
      row: of a file.
      chat: write texts as turns of a conversation too, a prompt as the user's.
      system: system message of conversations that have none; empty: none.

    Raises:
      ValueError: messages for a model without a chat template, or that its template refuses.
    """
    if not row.answers:
        return [Example(_asked(tokenizer, row, chat, system), (), ())]
    if row.stepwise:
        return [_steps(tokenizer, row)]
    return [_example(tokenizer, row, answer, chat, system) for answer in row.answers]


def fitting(
    examples: Sequence[Example], longest: int, long: Long, where: str
) -> list[Example] | None:
    """The examples of a row with no more than `longest` tokens each, prompt included.

    Args:
      examples: of a row.
      longest: in tokens.
      long: `truncate` leaves out tokens at the end, `drop` the row, `error` refuses it.
      where: the row is.

    Returns:
      None if the row is left out: by `drop`, or as nothing to learn is left of it.

    Raises:
      ValueError: by `error`.
    """
    sizes = [len(example.prompt) + len(example.tokens) for example in examples]
    if max(sizes) > longest:
        if long == "error":
            raise ValueError(
                f"{where}: it has {max(sizes)} tokens, more than data.max_tokens={longest}; raise "
                "that, or set --data.long-rows truncate or drop"
            )
        if long == "drop":
            return None
    cut = [_cut(example, longest - len(example.prompt)) for example in examples]
    return None if any(not example.tokens for example in cut) else cut


def pieces(example: Example, longest: int) -> list[Example]:
    """A text as pieces of no more than `longest` tokens each.

    Each piece begins with the last token of the one before, so every token of the text but its
    first is learned in exactly one piece.

    Args:
      example: of a text.
      longest: in tokens, 2 or more.
    """
    ids = (*example.prompt, *example.tokens)
    mask = (*(False for _ in example.prompt), *example.learned)
    step = longest - 1
    starts = range(0, len(ids) - 1, step)
    cut = ((ids[start : start + longest], mask[start + 1 : start + longest]) for start in starts)
    return [Example(tokens[:1], tokens[1:], learned) for tokens, learned in cut]


def scored_at_end(example: Example, end: int) -> Example:
    """The example for a reward model, which learns a score of its last token alone.

    Args:
      example: of a row.
      end: id of a token that is put after it, as what is scored is the state before an action.
    """
    tokens = (*example.tokens, end)
    return example._replace(tokens=tokens, learned=(*(False for _ in example.tokens), True))


def _cut(example: Example, room: int) -> Example:
    """The first `room` tokens, as far as any is learned."""
    learned = example.learned[: max(room, 0)]
    end = len(learned) - learned[::-1].index(True) if any(learned) else 0
    return example._replace(tokens=example.tokens[:end], learned=learned[:end])


def _example(tokenizer: Tokenizer, row: Row, answer: Text, chat: bool, system: str) -> Example:
    if isinstance(answer, str) and not row.prompt:
        ids = _ended(tokenizer, _encoded(tokenizer.prompt, answer, row), row)
        return Example(ids[:1], ids[1:], (True,) * (len(ids) - 1))
    if isinstance(answer, str) and isinstance(row.prompt, str) and not chat:
        ids = _ended(tokenizer, _encoded(tokenizer.encode, answer, row), row)
        prompt = tuple(_encoded(tokenizer.prompt, row.prompt, row))
        return Example(prompt, ids, (True,) * len(ids))
    if tokenizer.conversation is None or tokenizer.chat is None:
        raise ValueError(
            f"{row.id}: it holds messages, but this model has no chat template; choose a model "
            "that has one, or give prompts and answers as texts"
        )
    import jinja2

    lead = _turns(row.prompt, "user") if row.prompt else []
    turns = [*lead, *_turns(answer, "assistant")]
    extra = [{"role": "system", "content": system}]
    extra = extra if system and turns[0]["role"] != "system" else []
    start = len(extra) + len(lead)
    try:
        _check_roles(tokenizer, turns)
        _check_words(turns[len(lead) :])
        _check_variables(tokenizer, row)
        ended = [_without_end(tokenizer, turn) for turn in turns]
        ids, learned = tokenizer.conversation(
            [*extra, *ended], row.tools, start=start, **row.variables
        )
        prompt_messages = [*extra, *ended[: len(lead)]]
        before = tokenizer.chat(prompt_messages, row.tools, **row.variables) if lead else []
    except jinja2.TemplateError as error:
        raise ValueError(f"{row.id}: the chat template refuses it: {error}") from error
    except ValueError as error:
        raise ValueError(f"{row.id}: {error}") from error
    if ids[: len(before)] != before:
        raise ValueError(
            f"{row.id}: the chat template writes the prompt otherwise once an answer follows it; "
            "give rows of messages in place of prompts and answers"
        )
    learned = [mark and at >= max(len(before), 1) for at, mark in enumerate(learned)]
    if not any(learned):
        raise ValueError(f"{row.id}: the chat template leaves no token of the assistant to learn")
    first = learned.index(True)
    return Example(tuple(ids[:first]), tuple(ids[first:]), tuple(learned[first:]))


def _asked(tokenizer: Tokenizer, row: Row, chat: bool, system: str) -> tuple[int, ...]:
    """A prompt that a policy is to answer."""
    if isinstance(row.prompt, str) and not chat:
        return tuple(_encoded(tokenizer.prompt, row.prompt, row))
    if tokenizer.chat is None:
        raise ValueError(f"{row.id}: it holds messages, but this model has no chat template")
    import jinja2

    turns = _turns(row.prompt, "user")
    lead = [{"role": "system", "content": system}]
    lead = lead if system and turns[0]["role"] != "system" else []
    try:
        return tuple(tokenizer.chat([*lead, *turns], row.tools, **row.variables))
    except jinja2.TemplateError as error:
        raise ValueError(f"{row.id}: the chat template refuses it: {error}") from error


def _encoded(encode: Callable[[str], list[int]], text: str, row: Row) -> list[int]:
    """Ids of a text; what the tokenizer refuses is said with the place of the row."""
    try:
        return encode(text)
    except (ValueError, UnicodeError) as error:
        raise ValueError(f"{row.id}: the tokenizer refuses a text: {error}") from error


def end(tokenizer: Tokenizer) -> int:
    """The token that ends a text.

    Raises:
      ValueError: the model has none.
    """
    if not tokenizer.eos_ids:
        raise ValueError(
            "this model has no end-of-sequence token, so it would not learn to stop; set eos_token "
            "in its tokenizer_config.json, or eos_token_id in its generation_config.json"
        )
    return tokenizer.eos_ids[0]


WITHOUT_TEMPLATE = (
    "prompts and answers are texts, and are written without the model's chat template; --chat "
    "writes them by it"
)
"""What to say of rows for which `skips_template` holds."""


def skips_template(tokenizer: Tokenizer, row: Row, *, chat: bool) -> bool:
    """Whether a row has a prompt and an answer that are not written by the template there is."""
    texts = isinstance(row.prompt, str) and all(isinstance(answer, str) for answer in row.answers)
    has_pair = bool(row.prompt) and bool(row.answers) and not row.stepwise
    return tokenizer.chat is not None and not chat and texts and has_pair


def learns_to_stop(tokenizer: Tokenizer) -> bool:
    """Whether turns that the chat template writes end with a token that ends a sequence."""
    if tokenizer.conversation is None:
        return True
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    import jinja2

    try:
        ids, learned = tokenizer.conversation(turns)
    except (ValueError, jinja2.TemplateError):  # each row says so of itself
        return True
    return any(mark and i in tokenizer.eos_ids for i, mark in zip(ids, learned, strict=True))


def _ended(tokenizer: Tokenizer, ids: Sequence[int], row: Row) -> tuple[int, ...]:
    """The ids with one token that ends them: the one that the text brings, or else a new one."""
    try:
        close = end(tokenizer)
    except ValueError as error:
        raise ValueError(f"{row.id}: {error}") from error
    count = len(ids)
    while count and (ids[count - 1] in tokenizer.eos_ids or _is_blank(tokenizer, ids[count - 1])):
        count -= 1
    first = next((n for n in range(count, len(ids)) if ids[n] in tokenizer.eos_ids), None)
    return (*ids, close) if first is None else tuple(ids[: first + 1])


def _is_blank(tokenizer: Tokenizer, token: int) -> bool:
    return (tokenizer.spelled or tokenizer.decode)([token]).isspace()


def _without_end(tokenizer: Tokenizer, turn: Message) -> Message:
    """A turn of the assistant without the tokens of an end that its text spells out at its end."""
    if turn["role"] != "assistant" or tokenizer.spelled is None:
        return turn
    ends, content = [tokenizer.spelled([i]) for i in tokenizer.eos_ids], turn["content"]
    while match := next((e for e in ends if e and content.rstrip().endswith(e)), None):
        content = content.rstrip().removesuffix(match)
    return turn if content == turn["content"] else {**turn, "content": content}


_ROLES = ("system", "user", "assistant", "tool")


def _check_roles(tokenizer: Tokenizer, turns: Sequence[Message]) -> None:
    """Refuse roles that the template does not name: it would write them as they are."""
    for place, turn in enumerate(turns):
        role = turn["role"]
        quoted = tokenizer.template is None or re.search(
            rf"['\"]{re.escape(role)}['\"]", tokenizer.template
        )
        if role not in _ROLES and not quoted:
            raise ValueError(
                f"message {place} has the role {role!r}, which the chat template does not name; "
                f"write one of {', '.join(_ROLES)}"
            )


def _check_words(answer: Sequence[Message]) -> None:
    """Refuse a turn of which the end alone would be learned, as an empty text is refused."""
    for turn in answer:
        said = turn["content"] or turn.get("tool_calls") or turn.get("reasoning_content")
        if turn["role"] == "assistant" and turn.get("weight", 1) and not said:
            raise ValueError(
                "a message of the assistant is empty; leave it out, or give it the weight 0"
            )


def _check_variables(tokenizer: Tokenizer, row: Row) -> None:
    """Refuse variables that the template does not have: it would ignore them."""
    for name, value in row.variables.items():
        if value in ("", None, [], {}):  # which changes no prompt
            continue
        if not re.search(rf"\b{re.escape(name)}\b", tokenizer.template or ""):
            raise ValueError(
                f"the chat template has no variable {name!r}; take it out of the row, or ignore "
                "the column with --data.columns.variables ''"
            )


def _steps(tokenizer: Tokenizer, row: Row) -> Example:
    """A line a step; learned is what follows the end of a line, as a state is scored before it."""
    ids = list[int]()
    learned = list[bool]()
    for step in row.answers:
        line = _encoded(tokenizer.encode, f"{step}\n", row)
        learned += [bool(ids), *(False for _ in line[1:])] if line else []
        ids += line
    prompt = tuple(_encoded(tokenizer.prompt, str(row.prompt), row))
    return Example(prompt, (*ids, end(tokenizer)), (*learned, True))


def _turns(text: Text, role: str) -> list[Message]:
    return [{"role": role, "content": text}] if isinstance(text, str) else list(text)
