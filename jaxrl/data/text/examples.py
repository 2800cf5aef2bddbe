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

from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxrl.data.sources.rows import Row, Text
from jaxrl.data.text.chat import Message
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
    sizes = [len(each.prompt) + len(each.tokens) for each in examples]
    if max(sizes) > longest:
        if long == "error":
            raise ValueError(
                f"{where}: it has {max(sizes)} tokens, more than data.max_tokens={longest}; raise "
                "that, or set --data.long-rows truncate or drop"
            )
        if long == "drop":
            return None
    cut = [_cut(each, longest - len(each.prompt)) for each in examples]
    return None if any(not each.tokens for each in cut) else cut


def pieces(example: Example, longest: int) -> list[Example]:
    """A text as pieces of no more than `longest` tokens each.

    Each piece begins with the last token of the one before, so every token of the text but its
    first is learned in exactly one piece.

    Args:
      example: of a text.
      longest: in tokens, 2 or more.
    """
    ids = (*example.prompt, *example.tokens)
    own = (*(False for _ in example.prompt), *example.learned)
    step = longest - 1
    starts = range(0, len(ids) - 1, step)
    cut = ((ids[start : start + longest], own[start + 1 : start + longest]) for start in starts)
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
    kept = example.learned[: max(room, 0)]
    end = len(kept) - kept[::-1].index(True) if any(kept) else 0
    return example._replace(tokens=example.tokens[:end], learned=kept[:end])


def _example(tokenizer: Tokenizer, row: Row, answer: Text, chat: bool, system: str) -> Example:
    end = tokenizer.eos_ids[0]
    if isinstance(answer, str) and not row.prompt:
        ids = (*tokenizer.prompt(answer), end)
        return Example(ids[:1], ids[1:], (True,) * (len(ids) - 1))
    if isinstance(answer, str) and isinstance(row.prompt, str) and not chat:
        ids = (*tokenizer.encode(answer), end)
        return Example(tuple(tokenizer.prompt(row.prompt)), ids, (True,) * len(ids))
    if tokenizer.conversation is None or tokenizer.chat is None:
        raise ValueError(
            f"{row.id}: it holds messages, but this model has no chat template; choose a model "
            "that has one, or give prompts and answers as texts"
        )
    import jinja2

    lead = _turns(row.prompt, "user") if row.prompt else []
    turns = [*lead, *_turns(answer, "assistant")]
    first = [{"role": "system", "content": system}]
    extra = first if system and turns[0]["role"] != "system" else []
    try:
        ids, learned = tokenizer.conversation([*extra, *turns], row.tools)
        before = tokenizer.chat([*extra, *lead], row.tools) if lead else []
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
    start = learned.index(True)
    return Example(tuple(ids[:start]), tuple(ids[start:]), tuple(learned[start:]))


def _steps(tokenizer: Tokenizer, row: Row) -> Example:
    """A line a step; learned is what follows the end of a line, as a state is scored before it."""
    ids = list[int]()
    learned = list[bool]()
    for step in row.answers:
        line = tokenizer.encode(f"{step}\n")
        learned += [bool(ids), *(False for _ in line[1:])] if line else []
        ids += line
    prompt = tuple(tokenizer.prompt(str(row.prompt)))
    return Example(prompt, (*ids, tokenizer.eos_ids[0]), (*learned, True))


def _turns(text: Text, role: str) -> list[Message]:
    return [{"role": role, "content": text}] if isinstance(text, str) else list(text)
