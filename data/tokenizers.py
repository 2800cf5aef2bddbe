"""Tokenizers, as records of functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from data import chat

END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>")
"""Tokens that end a turn or a text wherever a vocabulary has them."""

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types


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
    """Conversation to ids of the prompt for the next assistant turn; None without a template."""

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


def from_gguf(path: str | Path) -> Tokenizer:
    """The tokenizer embedded in a GGUF file: byte-level BPE, its end tokens and chat template.

    Raises:
      ValueError: a tokenizer kind or pre-tokenizer we do not rebuild.
    """
    fields = gguf.GGUFReader(str(path)).fields

    def meta(key: str, default: Any = None) -> Any:
        field = fields.get(f"tokenizer.{key}")
        return default if field is None else field.contents()

    kind, pre = meta("ggml.model"), meta("ggml.pre")
    if (kind, pre) != ("gpt2", "smollm"):
        raise ValueError(
            f"{path}: tokenizer.ggml.model={kind!r} with pre={pre!r} is not rebuilt from GGUF; "
            "load the tokenizer.json of the original model"
        )
    pieces = meta("ggml.tokens")
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(merge.split(" ")) for merge in meta("ggml.merges")]
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for piece, token_type in zip(pieces, meta("ggml.token_type"), strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            added = tokenizers.AddedToken(piece, special=token_type == _CONTROL, normalized=False)
            backend.add_tokens([added])

    eos = meta("ggml.eos_token_id")
    eos_ids = dict.fromkeys([eos, *(ids[t] for t in END_TOKENS if t in ids)])
    bos = meta("ggml.bos_token_id") if meta("ggml.add_bos_token", False) else None
    return _wrap(
        backend,
        eos_ids=tuple(eos_ids),
        bos_id=bos,
        template=meta("chat_template"),
        special={"eos_token": pieces[eos], "bos_token": "" if bos is None else pieces[bos]},
    )


def _wrap(
    backend: tokenizers.Tokenizer,
    *,
    eos_ids: tuple[int, ...],
    bos_id: int | None,
    template: str | None,
    special: dict[str, str],
) -> Tokenizer:
    def encode(text: str) -> list[int]:
        return backend.encode(text, add_special_tokens=False).ids

    render = None if template is None else chat.compile_template(template, special)
    return Tokenizer(
        encode,
        decode=lambda ids: backend.decode(list(ids), skip_special_tokens=True),
        vocab_size=backend.get_vocab_size(),
        eos_ids=eos_ids,
        bos_id=bos_id,
        chat=None if render is None else lambda messages: encode(render(messages)),
    )


def load(path: str | Path) -> Tokenizer:
    """The tokenizer that comes with a model file."""
    if Path(path).suffix == ".gguf":
        return from_gguf(path)
    raise ValueError(f"tokenizer path {str(path)!r}: expected a .gguf file")
