"""Tokenizers written as the files of a Hugging Face directory."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from jaxrl import gguf_file
from jaxrl.data import rank_files
from jaxrl.data.gguf import gguf_vocab
from jaxrl.data.text import tokenizers as read

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""What a Hugging Face directory may hold of a tokenizer."""

END = "<eos>"
"""The spelling of id 0 of a tokenizer of characters."""

_SPACE = "\u2581"
"""How sentencepiece writes a space."""

PROBES = (
    "The quick brown fox doesn't stop: 12345 times, at 7:08!",
    "def f(x):\n    return x + 1\n\n\nprint(f(41))  # forty-two\t\r\nend ",
    "Straße, naïve café, 日本語のテキスト, русский текст, emoji 🙂🙂",
    " two  spaces   three, MiXeD CaSe's we'll I'VE",
    "".join(f"{' ' * n}{n}\n" for n in range(4, 72)),
)
"""Texts on which a rebuilt tokenizer must agree with the one that it was made from."""


def copy(source: Path, directory: Path) -> None:
    """Copy the tokenizer's files of a Hugging Face directory, byte for byte.

    Beside another vocabulary that comes alone, an equal tokenizer.json is written: what
    transformers makes of a sentencepiece model depends on fields of tokenizer_config.json that may
    be missing, and of `tiktoken.model` on a program of the model's own.
    """
    for name in FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)
    if (source / "tokenizer.json").exists():
        return
    model, config = source / "tokenizer.model", directory / "tokenizer_config.json"
    fields = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    if model.exists():
        try:
            fast = from_sentencepiece(sentencepiece.SentencePieceProcessor(model_file=str(model)))
        except ValueError:
            warnings.warn(
                f"{model} could not be rebuilt as tokenizer.json; transformers may split some "
                "texts otherwise, such as runs of spaces",
                stacklevel=2,
            )
            _write_config(directory, {"tokenizer_class": "LlamaTokenizer", **fields})
            return
        added = fields.get("added_tokens_decoder", {})
        for i in sorted(added, key=int):
            token = {"normalized": False, **added[i]}
            fast.add_tokens([tokenizers.AddedToken(token.pop("content"), **token)])
    elif vocabulary := rank_files.read(source, read.added_tokens(fields)):
        fast = rank_files.tokenizer(vocabulary)
        fields.pop("auto_map", None)  # which names a program that is not copied
    else:
        return
    tokenizer = read.from_directory(source)
    names = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_ids[0]}
    spelled = {k: fast.id_to_token(i) for k, i in names.items() if i is not None}
    if tokenizer.bos_id is not None:
        _lead(fast, spelled["bos_token"], tokenizer.bos_id)
    fast.save(str(directory / "tokenizer.json"))
    _write_config(directory, {**spelled, **fields, "tokenizer_class": "PreTrainedTokenizerFast"})


def from_sentencepiece(
    processor: sentencepiece.SentencePieceProcessor,
) -> tokenizers.Tokenizer:
    """The same tokenizer, as the `tokenizers` library has it.

    Raises:
      ValueError: it splits a text otherwise, see `check`.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
    meta = {
        "tokens": [piece.piece for piece in proto.pieces],
        "scores": [piece.score for piece in proto.pieces],
        "token_type": [piece.type for piece in proto.pieces],
        "unknown_token_id": processor.unk_id(),
        "add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
    }
    unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    fast = _spaced(meta, unigram=unigram)
    check(lambda text: fast.encode(text, add_special_tokens=False).ids, processor.encode)
    return fast


def from_gguf(source: Path, directory: Path) -> None:
    """Write the vocabulary and the chat template inside a GGUF file.

    Raises:
      ValueError: a vocabulary that is not rebuilt, see `gguf_vocab.read`.
    """
    fields = gguf_file.header(source).fields
    meta = gguf_vocab.metadata(fields)
    backend, pieces = gguf_vocab.read(meta), meta["tokens"]
    fast = gguf_vocab.byte_level(meta) if meta["model"] == "gpt2" else _spaced(meta)
    check(
        lambda text: fast.encode(text, add_special_tokens=False).ids,
        lambda text: backend.encode(text)[0],
    )
    bos = meta.get("bos_token_id")
    leads = bos is not None and meta.get("add_bos_token", meta["model"] == "llama")
    if leads:
        _lead(fast, pieces[bos], bos)
    fast.save(str(directory / "tokenizer.json"))
    names = {"eos": "eos", "bos": "bos", "unknown": "unk", "padding": "pad"}
    special = {
        f"{ours}_token": pieces[i]
        for theirs, ours in names.items()
        if (i := meta.get(f"{theirs}_token_id")) is not None
    }
    _write_config(directory, {**special, "add_bos_token": bool(leads)})
    if template := fields.get("tokenizer.chat_template"):
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def _lead(fast: tokenizers.Tokenizer, token: str, i: int) -> None:
    """Have every text led by a token."""
    fast.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, i)]
    )


def from_alphabet(alphabet: str, directory: Path) -> None:
    """Write a tokenizer of single characters; id 0 is `END`, as in `tokenizers.characters`."""
    ids = {END: 0} | {character: i + 1 for i, character in enumerate(alphabet)}
    fast = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=END))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([tokenizers.AddedToken(END, special=True, normalized=False)])
    fast.save(str(directory / "tokenizer.json"))
    _write_config(directory, {"eos_token": END})


def check(
    rebuilt_encode: Callable[[str], Sequence[int]],
    original_encode: Callable[[str], Sequence[int]],
) -> None:
    """Raise a ValueError unless two tokenizers give the same ids for `PROBES`."""
    for text in PROBES:
        if list(rebuilt_encode(text)) != list(original_encode(text)):
            raise ValueError(
                f"the rebuilt tokenizer splits {text!r} otherwise than the model's own; export to "
                "the format that the model came in"
            )


def _write_config(directory: Path, fields: dict[str, Any]) -> None:
    raw = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **fields,
    }
    text = json.dumps(raw, indent=2, ensure_ascii=False) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _spaced(meta: dict[str, Any], *, unigram: bool = False) -> tokenizers.Tokenizer:
    """Sentencepiece as the `tokenizers` library has it; of BPE, the scores order the merges."""
    pieces, scores, kinds = meta["tokens"], meta["scores"], meta["token_type"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    unknown = meta.get("unknown_token_id", 0)
    if unigram:
        rows = list(zip(pieces, scores, strict=True))
        model = models.Unigram(rows, unk_id=unknown, byte_fallback=True)
    else:
        normal = {p for p, kind in zip(pieces, kinds, strict=True) if kind == gguf_vocab.NORMAL}
        merges = []
        for piece in normal:
            cuts = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
            merges += [(scores[ids[piece]], a, b) for a, b in cuts if a in normal and b in normal]
        merges.sort(key=lambda merge: (-merge[0], ids[merge[1]], ids[merge[2]]))
        merges = [(0.0, a, b) for a, b in _runs(meta)] + merges
        model = models.BPE(
            ids,
            [(a, b) for _, a, b in merges],
            unk_token=pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    fast = tokenizers.Tokenizer(model)
    leads = meta.get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    fast.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if leads else spaces
    )
    fast.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if leads else [])
    )
    run_pieces = set() if unigram else {a + b for a, b in _runs(meta)}
    for piece, kind in zip(pieces, kinds, strict=True):
        if kind in (gguf_vocab.CONTROL, gguf_vocab.USER_DEFINED) and piece not in run_pieces:
            special = kind == gguf_vocab.CONTROL
            fast.add_tokens([tokenizers.AddedToken(piece, special=special, normalized=False)])
    return fast


def _runs(meta: dict[str, Any]) -> list[tuple[str, str]]:
    """Merges that come first and make the user-defined pieces of several spaces.

    Sentencepiece finds such a piece among spaces as it writes them, where an added token of the
    `tokenizers` library would look for it in the text. It takes the longest piece first: so do
    merges that double, followed by those that put the halves of what is left together, as long as
    the longest piece is a power of two.
    """
    rows = zip(meta["tokens"], meta["token_type"], strict=True)
    space_pieces = {
        p for p, kind in rows if kind == gguf_vocab.USER_DEFINED and not p.strip(_SPACE)
    }
    all_pieces = space_pieces | {_SPACE}
    cuts = ((piece[:i], piece[i:]) for piece in space_pieces for i in range(1, len(piece)))
    pairs = [(a, b) for a, b in cuts if a in all_pieces and b in all_pieces]
    double = sorted(pair for pair in pairs if pair[0] == pair[1])
    return double + sorted(set(pairs) - set(double), reverse=True)
