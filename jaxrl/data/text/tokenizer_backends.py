"""Tokenizer libraries behind one interface."""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as proto

Span = tuple[int, int]
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A piece of a vocabulary that stands for one byte."""


class Backend(NamedTuple):
    """A tokenizer library with a vocabulary."""

    encode: Callable[[str], tuple[list[int], list[Span]]]
    """Text to ids and the characters each stands for; special tokens are known where they are
    spelled out, and none is added. A ValueError where UTF-8 cannot encode the text, here and in
    `plain`, or where a pattern of a tokenizer.json takes too long for it."""
    plain: Callable[[str], list[int]]
    """Text from outside to ids: a token that is spelled out is text, be it special or one that was
    added to the vocabulary, as `<tool_call>` may be. Added white space stays a token: models know
    it as one, and it means nothing."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, leaving special tokens out."""
    size: int
    """One more than the greatest id."""
    ids: Callable[[str], int | None]
    """A token's id by its exact spelling."""
    spelled: Callable[[Sequence[int]], str]
    """Ids to text, special tokens spelled out."""
    piece: Callable[[int], str | None] = lambda token: None
    """A token as the vocabulary writes it; None where that is not known."""
    token_bytes: Callable[[int], bytes | None] | None = None
    """See `tokenizers.Tokenizer.token_bytes`."""


def from_tokenizers(tokenizer: tokenizers.Tokenizer) -> Backend:
    """A backend on Hugging Face's `tokenizers`."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if getattr(tokenizer.model, "dropout", None):
        warnings.warn(
            f"tokenizer.json has model.dropout={tokenizer.model.dropout:g}, by which a text has "
            "other tokens each time; it is set to 0",
            stacklevel=3,
        )
        tokenizer.model.dropout = None

    def encode(text: str) -> tuple[list[int], list[Span]]:
        encoding = _bounded(tokenizer.encode, _utf8(text), add_special_tokens=False)
        return encoding.ids, encoding.offsets

    @functools.cache
    def spell() -> Callable[[str], bytes]:
        return _speller(tokenizer.decoder)

    added = tokenizer.get_added_tokens_decoder()

    def token_bytes(token: int) -> bytes | None:
        if token in added:
            return None if added[token].special else added[token].content.encode()
        piece = tokenizer.id_to_token(token)
        return None if piece is None else spell()(piece)

    @functools.cache
    def as_text() -> tokenizers.Tokenizer:
        state = json.loads(tokenizer.to_str())
        for token in state["added_tokens"]:
            token["special"] |= _visible(token["content"])
        copy = tokenizers.Tokenizer.from_str(json.dumps(state))
        copy.encode_special_tokens = True
        return copy

    return Backend(
        encode,
        plain=lambda text: _bounded(as_text().encode, _utf8(text), add_special_tokens=False).ids,
        decode=lambda ids: _bounded(tokenizer.decode, list(ids), skip_special_tokens=True),
        size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        ids=tokenizer.token_to_id,
        spelled=lambda ids: _bounded(tokenizer.decode, list(ids), skip_special_tokens=False),
        piece=tokenizer.id_to_token,
        token_bytes=token_bytes,
    )


def _bounded(call: Callable[..., Any], value: Any, **options: Any) -> Any:
    """What the library makes of a value.

    Raises:
      ValueError: it gives up, as where a pattern takes too long; it panics there.
    """
    try:
        return call(value, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(
            f"tokenizer.json cannot be used for a text of {len(value)}: {error}; take the model of "
            "another source"
        ) from error


@functools.cache
def byte_letters() -> Mapping[str, int]:
    """The bytes that the letters of byte-level vocabularies stand for, as GPT-2 has them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    remaining_bytes = [byte for byte in range(256) if byte not in plain]
    letters = [*map(chr, plain), *(chr(256 + n) for n in range(len(remaining_bytes)))]
    return dict(zip(letters, [*plain, *remaining_bytes], strict=True))


def bytes_of(text: str, piece: str | None) -> bytes:
    """The bytes of a token, which may be a part of a character.

    Args:
      text: that the token decodes to by itself.
      piece: the token as the vocabulary writes it, if that is known.
    """
    if "\ufffd" not in text or piece is None:
        return text.encode("utf-8", "replace")
    if match := _BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    letters = byte_letters()
    if all(letter in letters for letter in piece):
        return bytes(letters[letter] for letter in piece)
    return text.encode("utf-8", "replace")


def _speller(decoder: Any) -> Callable[[str], bytes]:
    """`piece -> bytes` of tokens within a text, by the decoder of a tokenizer.json.

    Raises:
      ValueError: it joins tokens in another way than one after the other.
    """
    state = json.loads(decoder.__getstate__()) if decoder is not None else {"type": None}
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    replacements, kinds = list[tuple[str, str]](), {step["type"] for step in steps}
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "Metaspace":
            replacements.append((step["replacement"], " "))
        elif step["type"] not in ("ByteLevel", "ByteFallback", "Fuse", "Strip"):
            raise ValueError(
                f"the decoder {step['type']} of tokenizer.json: the bytes of its tokens are not "
                "known; those known are ByteLevel, and Metaspace or Replace with ByteFallback"
            )
    letters = byte_letters()

    def spell(piece: str) -> bytes:
        if "ByteLevel" in kinds and all(letter in letters for letter in piece):
            return bytes(letters[letter] for letter in piece)
        match = _BYTE.fullmatch(piece)
        if match and "ByteFallback" in kinds:
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode("utf-8", "replace")

    return spell


def _visible(token: str) -> bool:
    """Whether a token is more than white space, which sentencepiece spells in its own way."""
    return bool(token.replace("\u2581", " ").strip())


def _utf8(text: str) -> str:
    """The text, which may have half of a surrogate pair, as JSON can spell it.

    Raises:
      ValueError: it has; the libraries raise what they raise for a value that is no text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start} of a text, {text[error.start]!r}, is half of a surrogate "
            "pair, which UTF-8 cannot encode; leave it out"
        ) from error
    return text


def from_sentencepiece(
    processor: sentencepiece.SentencePieceProcessor, added: Mapping[str, int] | None = None
) -> Backend:
    """A backend on sentencepiece.

    Args:
      processor: with its model loaded.
      added: special tokens that are no pieces of the model, and their ids.

    Sentencepiece reads no control token from text, so the text is cut at them. Where the model
    puts a space before a text, each part gets one, as in Llama 2.
    """
    size = processor.get_piece_size()
    pieces = {processor.id_to_piece(i): i for i in range(size)}
    special = {piece: i for piece, i in pieces.items() if processor.is_control(i)}
    special |= {token: i for token, i in (added or {}).items() if token not in pieces}
    longest_first = sorted(special, key=len, reverse=True)
    cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if special else None

    def encode(text: str) -> tuple[list[int], list[Span]]:
        ids: list[int] = []
        spans: list[Span] = []
        at = 0
        _utf8(text)
        for part in cut.split(text) if cut else [text]:
            if part in special:
                ids.append(special[part])
                spans.append((at, at + len(part)))
            elif part:
                offsets = list(accumulate((len(c.encode()) for c in part), initial=0))
                for piece in processor.encode(part, return_type="proto").pieces:
                    ids.append(piece.id)
                    start, end = (
                        bisect.bisect_right(offsets, b) - 1 for b in (piece.begin, piece.end)
                    )
                    spans.append((at + start, at + end))
            at += len(part)
        return ids, spans

    @functools.cache
    def as_text() -> sentencepiece.SentencePieceProcessor:
        model = proto.ModelProto.FromString(processor.serialized_model_proto())
        for piece in model.pieces:
            if piece.type == piece.USER_DEFINED and _visible(piece.piece):
                piece.type = piece.UNUSED
        return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())

    def decode(ids: Sequence[int]) -> str:
        return processor.decode([i for i in ids if i < size and not processor.is_control(i)])

    def token_bytes(token: int) -> bytes | None:
        kinds = (processor.is_control, processor.is_unknown, processor.is_unused)
        if token >= size or any(kind(token) for kind in kinds):
            return None
        piece = processor.id_to_piece(token)
        if processor.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("\u2581", " ").encode()

    names = {i: token for token, i in special.items()}

    def spelled(ids: Sequence[int]) -> str:
        runs = itertools.groupby(ids, key=names.get)
        return "".join(name * len([*run]) if name else decode([*run]) for name, run in runs)

    return Backend(
        encode,
        lambda text: as_text().encode(_utf8(text)) if text else [],
        decode,
        size=max([size - 1, *special.values()]) + 1,
        ids=lambda token: special.get(token, pieces.get(token)),
        spelled=spelled,
        token_bytes=token_bytes,
    )
