"""The tokenizer of a model as the metadata of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers as library
from gguf import GGUFValueType
from sentencepiece import sentencepiece_model_pb2 as proto

from jaxrl import gguf_file
from jaxrl.data.gguf import gguf_vocab
from jaxrl.data.gguf.gguf_vocab import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from jaxrl.data.text import tokenizers
from jaxrl.data.text.tokenizer_files import PROBES, check
from jaxrl.gguf_file import Field

_NEVER = -1e6
"""Score of a piece that no merge makes."""

Meta = dict[str, Any]


def read(source: Path, vocab_size: int) -> list[Field]:
    """The `tokenizer.` metadata of a model.

    Args:
      source: a GGUF file, whose metadata is taken as it is, or a Hugging Face directory.
      vocab_size: of the embedding; ids that stand for no token are filled in.

    Raises:
      ValueError: a tokenizer that llama.cpp would split otherwise, or that is not converted.
    """
    if source.is_file():
        reader = gguf_file.open_file(source)
        return [
            Field(key, field.contents(), *field.types[:2])
            for key, field in reader.fields.items()
            if key.startswith("tokenizer.")
        ]
    meta = _directory(source, vocab_size)
    backend = gguf_vocab.read(meta)
    check(lambda text: backend.encode(text)[0], tokenizers.from_directory(source).encode)
    fields = [Field(f"tokenizer.ggml.{key}", value, *_kind(value)) for key, value in meta.items()]
    if template := tokenizers.template(source):
        fields.append(Field("tokenizer.chat_template", template, GGUFValueType.STRING))
    return fields


def _kind(value: Any) -> tuple[GGUFValueType, GGUFValueType | None]:
    match value:
        case bool():
            return GGUFValueType.BOOL, None
        case int():
            return GGUFValueType.UINT32, None
        case str():
            return GGUFValueType.STRING, None
    inner = {str: GGUFValueType.STRING, float: GGUFValueType.FLOAT32, int: GGUFValueType.INT32}
    return GGUFValueType.ARRAY, inner[type(value[0])]


def _directory(source: Path, vocab_size: int) -> Meta:
    if (source / "tokenizer.json").exists():
        meta, ids = _fast(source, vocab_size)
    elif not (source / "tokenizer.model").exists():
        raise ValueError(
            f"{source}: a vocabulary of tiktoken or tekken is not written to GGUF; export with "
            "`--to hf`, which writes an equal tokenizer.json, and then export that directory"
        )
    else:
        meta, ids = _sentencepiece(source, vocab_size)
    special = tokenizers.special_tokens(source)
    tokenizer = tokenizers.from_directory(source)
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for theirs, ours in names.items():
        if (i := ids.get(special.get(f"{theirs}_token", ""))) is not None:
            meta[f"{ours}_token_id"] = i
    meta.setdefault("eos_token_id", tokenizer.eos_ids[0])
    if tokenizer.bos_id is not None:
        meta["bos_token_id"] = tokenizer.bos_id
    meta["add_bos_token"] = tokenizer.bos_id is not None
    return meta


def _fast(source: Path, vocab_size: int) -> tuple[Meta, dict[str, int]]:
    """Metadata and ids of a tokenizer.json."""
    fast = library.Tokenizer.from_file(str(source / "tokenizer.json"))
    raw = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    model, ids = raw["model"], fast.get_vocab(with_added_tokens=True)
    if model["type"] != "BPE":
        raise ValueError(
            f"{source}: a tokenizer of type {model['type']!r} is not written to GGUF, only BPE; "
            "export the model with --to hf"
        )
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    added = {token["content"]: token["special"] for token in raw["added_tokens"]}
    tokens, kinds = _filled(ids, vocab_size, added)
    if not model.get("byte_fallback"):
        meta = {"model": "gpt2", "pre": _split(source, fast), "tokens": tokens}
        return {**meta, "token_type": kinds, "merges": merges}, ids
    ranks: dict[str, float] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", ""), -float(rank))
    unknown = model.get("unk_token")
    for i, token in enumerate(tokens):
        if kinds[i] == NORMAL and len(token) == 6 and token.startswith("<0x"):
            kinds[i] = BYTE
    if unknown in ids:
        kinds[ids[unknown]] = UNKNOWN
    first = fast.encode("a", add_special_tokens=False).tokens[0]
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": [ranks.get(token, _NEVER) for token in tokens],
        "token_type": kinds,
        "unknown_token_id": ids.get(unknown, 0),
        "add_space_prefix": first.startswith("\u2581"),
    }, ids


def _filled(
    ids: dict[str, int], vocab_size: int, added: dict[str, bool]
) -> tuple[list[str], list[int]]:
    """Tokens and their types in the order of ids, up to the size of the embedding."""
    tokens, kinds = [f"[PAD{i}]" for i in range(vocab_size)], [UNUSED] * vocab_size
    for token, i in ids.items():
        tokens[i] = token
        kinds[i] = NORMAL if token not in added else CONTROL if added[token] else USER_DEFINED
    return tokens, kinds


def _split(source: Path, fast: library.Tokenizer) -> str:
    """llama.cpp's name of how a byte-level tokenizer splits words."""
    if fast.pre_tokenizer is not None:
        theirs = [fast.pre_tokenizer.pre_tokenize_str(text) for text in PROBES]
        for name in gguf_vocab.SPLITS:
            ours = gguf_vocab.pre_tokenizer(name)
            if [ours.pre_tokenize_str(text) for text in PROBES] == theirs:
                return name
    raise ValueError(
        f"{source}: the tokenizer splits words in none of the ways {gguf_vocab.SPLITS}; export the "
        "model with --to hf and convert that with llama.cpp's convert_hf_to_gguf.py"
    )


def _sentencepiece(source: Path, vocab_size: int) -> tuple[Meta, dict[str, int]]:
    """Metadata and ids of a tokenizer.model."""
    slow = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    model = proto.ModelProto.FromString(slow.serialized_model_proto())
    if model.trainer_spec.model_type != proto.TrainerSpec.BPE:
        raise ValueError(
            f"{source}: a sentencepiece tokenizer that is no BPE is not written to GGUF; export "
            "the model with --to hf"
        )
    config = source / "tokenizer_config.json"
    decoder = (
        json.loads(config.read_text()).get("added_tokens_decoder", {}) if config.exists() else {}
    )
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    ids |= {token["content"]: int(i) for i, token in decoder.items()}
    added = {token["content"]: token.get("special", True) for token in decoder.values()}
    tokens, kinds = _filled(ids, vocab_size, added)
    scores = [_NEVER] * vocab_size
    for i, piece in enumerate(model.pieces):
        scores[i], kinds[i] = piece.score, piece.type
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
        "unknown_token_id": slow.unk_id(),
        "add_space_prefix": model.normalizer_spec.add_dummy_prefix,
    }, ids
