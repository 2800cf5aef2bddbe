"""Preferences as questions with one letter for an answer: a generative pairwise reward model.

A language model reads a prompt and two answers, and how probable it finds `A` against `B` as the
next token is how probable the first answer is the better one (Xu et al. 2025, "A Unified Pairwise
Framework for RLHF"). It is asked in training as the extension `judge` asks it in a run.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.data.rewards.judged.questions import boundary, comparison
from jaxrl.data.sources.parsing import Row, Text
from jaxrl.data.text.examples import Example
from jaxrl.data.text.tokenizers import Tokenizer
from jaxrl.data.types import Problem

LETTERS = ("A", "B")


def encode_question(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    """Token ids of a question: a user's message where the model has a chat template.

    Raises:
      ValueError: characters that the model does not know.
    """
    if tokenizer.chat is None:
        return tokenizer.prompt(text)
    return tokenizer.chat([{"role": "user", "content": text}])


def first_tokens(tokenizer: Tokenizer, answers: tuple[str, str]) -> tuple[int, int]:
    """What two answers begin with.

    Raises:
      ValueError: the answers begin with the same token, or cannot be encoded.
    """
    first, second = (tokenizer.encode(answer)[0] for answer in answers)
    if first == second:
        raise ValueError(
            f"judge: {answers} begin with the same token of this model, so it cannot judge"
        )
    return first, second


def questions(row: Row, seed: int) -> list[str]:
    """Which answer of a preference is better: the chosen one first, then the rejected one."""
    problem = Problem(row.id, _plain(row.prompt), None)
    chosen, rejected = map(_plain, row.answers)
    mark = boundary(seed, [chosen, rejected])
    return [
        comparison((), problem, *pair, mark) for pair in ((chosen, rejected), (rejected, chosen))
    ]


def examples(tokenizer: Tokenizer, row: Row, seed: int) -> list[list[Example]]:
    """The questions of a preference, each with both letters, the right one first.

    One token of each is learned, so that a loss of the two log-probabilities as scores is the
    cross-entropy of the letter under a softmax over `A` and `B`.

    Args:
      tokenizer: of the model.
      row: a preference.
      seed: of the run.

    Raises:
      ValueError: characters that the model does not know.
    """
    letters = first_tokens(tokenizer, LETTERS)
    return [
        [Example(tuple(encode_question(tokenizer, text)), (letter,), (True,)) for letter in right]
        for text, right in zip(questions(row, seed), (letters, letters[::-1]), strict=True)
    ]


def _plain(text: Text) -> str:
    """Messages as text: one alone as what it says, of several who says what."""
    if isinstance(text, str):
        return text
    if len(text) == 1:
        return str(text[0]["content"])
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in text)
