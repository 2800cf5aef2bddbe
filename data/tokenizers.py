"""Tokenizers, as records of functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back."""

    encode: Callable[[str], list[int]]
    """Text to ids, adding no special token."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, leaving special tokens out."""
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    chat: Callable[[Sequence[dict[str, str]]], list[int]] | None = None
    """Conversation to the ids of the prompt for the next assistant turn; None without a template."""

    def prompt(self, text: str) -> list[int]:
        """Ids of a raw-text prompt, led by BOS once if the model has one."""
        ids = self.encode(text)
        if self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]


def characters(alphabet: str) -> Tokenizer:
    """One id a character; id 0 is EOS."""
    if len(set(alphabet)) != len(alphabet):
        raise ValueError(f"alphabet={alphabet!r} repeats a character; list each once")
    ids = {c: i + 1 for i, c in enumerate(alphabet)}

    def encode(text: str) -> list[int]:
        unknown = sorted(set(text) - ids.keys())
        if unknown:
            raise ValueError(f"text {text!r} has {unknown} outside the alphabet {alphabet!r}")
        return [ids[c] for c in text]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(alphabet[i - 1] for i in tokens if i)

    return Tokenizer(encode, decode, len(alphabet) + 1, eos_ids=(0,))
