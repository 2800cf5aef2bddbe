"""The vocabulary inside a GGUF file, rebuilt as the library that first made it would read it."""

from __future__ import annotations

from typing import Any

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Regex, decoders, models, pre_tokenizers

from jaxrl.data.text.tokenizer_backends import Backend, from_sentencepiece, from_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types of GGUF, which are sentencepiece's."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), _BYTES]
    )


SPLITS = ("smollm", "gpt-2", "llama-bpe", "qwen2")
"""Values of `tokenizer.ggml.pre` that are rebuilt."""


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """What splits words, by the name that llama.cpp has for it."""
    match name:
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence(
                [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        case "gpt-2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "llama-bpe":
            return _split(_WORDS % "{1,3}")
        case "qwen2":
            return _split(_WORDS % "")
    raise ValueError(
        f"tokenizer.ggml.pre={name!r} is not rebuilt from GGUF ({', '.join(SPLITS)} are); "
        "load the tokenizer.json of the original model"
    )


def read(meta: dict[str, Any]) -> Backend:
    """The backend of a file's `tokenizer.ggml` metadata, its prefix removed.

    Raises:
      ValueError: a kind of tokenizer or a way to split words that we do not rebuild.
    """
    match meta["model"]:
        case "gpt2":
            return from_tokenizers(byte_level(meta))
        case "llama":
            return from_sentencepiece(_sentencepiece(meta))
    raise ValueError(
        f"tokenizer.ggml.model={meta['model']!r} is not rebuilt from GGUF (gpt2 and llama are); "
        "load the tokenizer.json of the original model"
    )


_LISTS: dict[str, tuple[type, ...]] = {
    "tokens": (str,), "merges": (str,), "scores": (float, int), "token_type": (int,),
}  # fmt: skip
_NEEDED = {"gpt2": ("merges", "pre", "token_type"), "llama": ("scores", "token_type")}
"""Fields that are read, by the kind of tokenizer, beside those that all have."""


def metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """The `tokenizer.ggml` fields of `gguf_file.header`, by what follows that prefix.

    Raises:
      ValueError: one that is read is missing, is of another type, or is the id of no token.
    """
    prefix = "tokenizer.ggml."
    meta = {k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}
    needed = ("model", "tokens", "eos_token_id", *_NEEDED.get(str(meta.get("model")), ()))
    if missing := [name for name in needed if name not in meta]:
        raise ValueError(f"{prefix}{missing[0]} is missing; take the model of another source")
    for name, kinds in _LISTS.items():
        value = meta.get(name, [])
        if not (isinstance(value, list) and all(type(entry) in kinds for entry in value)):
            raise ValueError(
                f"{prefix}{name}={value!r:.60} is no list of {kinds[0].__name__} values; take the "
                "model of another source"
            )
        if name != "merges" and name in meta and len(value) != len(meta["tokens"]):
            raise ValueError(
                f"{prefix}{name} has {len(value)} entries for {len(meta['tokens'])} tokens; take "
                "the model of another source"
            )
    for name in ("model", "pre"):
        if not isinstance(meta.get(name, ""), str):
            raise ValueError(f"{prefix}{name}={meta[name]!r:.60} is no text")
    for name in ("bos_token_id", "eos_token_id", "unknown_token_id"):
        token = meta.get(name, 0)
        if type(token) is not int or not 0 <= token < len(meta["tokens"]):
            raise ValueError(
                f"{prefix}{name}={token!r:.60} is the id of none of its {len(meta['tokens'])} "
                "tokens; take the model of another source"
            )
    return meta


def byte_level(meta: dict[str, Any]) -> tokenizers.Tokenizer:
    """The byte-level BPE of a file's `tokenizer.ggml` metadata."""
    pieces = meta["tokens"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(merge.split(" ")) for merge in meta["merges"]]
    if faults := [merge for merge in merges if len(merge) != 2]:
        raise ValueError(f"tokenizer.ggml.merges has {' '.join(faults[0])!r:.60}, which is no pair")
    whole_words = meta["pre"] == "llama-bpe"  # which takes a word of the vocabulary unmerged
    model = models.BPE(vocab=ids, merges=merges, ignore_merges=whole_words)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer(meta["pre"])
    tokenizer.decoder = decoders.ByteLevel()
    for piece, kind in zip(pieces, meta["token_type"], strict=True):
        if kind in (CONTROL, USER_DEFINED):
            added = tokenizers.AddedToken(piece, special=kind == CONTROL, normalized=False)
            tokenizer.add_tokens([added])
    return tokenizer


def _sentencepiece(meta: dict[str, Any]) -> sentencepiece.SentencePieceProcessor:
    """Sentencepiece BPE, whose scores order the merges."""
    model = proto.ModelProto()
    unknown = meta.get("unknown_token_id", 0)
    rows = zip(meta["tokens"], meta["scores"], meta["token_type"], strict=True)
    for i, (piece, score, kind) in enumerate(rows):
        kind = UNKNOWN if i == unknown else kind  # some files call it a control token
        if kind == USER_DEFINED:
            piece = piece.replace(" ", "\u2581")  # the converter spells these with plain spaces
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    model.trainer_spec.vocab_size = len(model.pieces)
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.unk_id = unknown
    model.trainer_spec.bos_id = meta.get("bos_token_id", 1)
    model.trainer_spec.eos_id = meta.get("eos_token_id", 2)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = meta.get("add_space_prefix", True)
    model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
