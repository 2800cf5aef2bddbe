"""Vocabularies of bytes in order of rank: `tiktoken.model` of Kimi, `tekken.json` of Mistral.

A token is the pair of tokens with the lowest rank that a text has next to each other, merged again
and again. The pattern that splits a text first is in tekken.json; beside tiktoken.model it is in
the model's Python file, which is read as text and never run.
"""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from jaxrl.data.text import tokenizer_backends

_MOST_TOKENS = 1 << 21
"""More are of no vocabulary."""
_LONGEST = 1 << 10
"""Bytes of a token; the longest of the known vocabularies has 128."""
_LONGEST_PATTERN = 1 << 12
"""Characters."""


class Ranked(NamedTuple):
    """A vocabulary as its file has it."""

    ranks: Mapping[bytes, int]
    """The bytes of each token, and its id."""
    pattern: str
    """A regular expression whose matches are split further and never joined."""
    special: Mapping[str, int]
    """Special tokens and their ids."""
    names: Mapping[str, str]
    """Special tokens by what they are for, such as `bos_token`, where the file says so."""


def read(directory: Path, special: Mapping[str, int]) -> Ranked | None:
    """The vocabulary of a model's directory; None if it has none of this kind.

    Args:
      directory: with tekken.json, or with tiktoken.model and a Python file beside it.
      special: the added tokens of tokenizer_config.json and their ids.

    Raises:
      ValueError: a file that is not of its form.
    """
    if (file := directory / "tekken.json").exists():
        return _tekken(file)
    files = [directory / "tiktoken.model", *sorted(directory.glob("*.tiktoken"))]
    file = next((file for file in files if file.exists()), files[0])
    if not file.exists():
        return None
    ranks = dict(_lines(file))
    return Ranked(_checked(ranks, file), _pattern(directory, file), special, {})


def tokenizer(vocabulary: Ranked) -> tokenizers.Tokenizer:
    """The same tokenizer, as the library `tokenizers` has it."""
    letters = {byte: letter for letter, byte in tokenizer_backends.byte_letters().items()}

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    ranks = vocabulary.ranks
    vocab = {spelled(token): i for token, i in ranks.items()} | dict(vocabulary.special)
    merges = [(spelled(a), spelled(b)) for a, b in _merges(ranks)]
    fast = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(vocabulary.pattern), behavior="isolated")
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([split, to_letters])
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(
        [
            tokenizers.AddedToken(token, normalized=False, special=True)
            for token in sorted(vocabulary.special, key=lambda token: vocabulary.special[token])
        ]
    )
    return fast


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Every pair of tokens that is a token, in order of its rank, then of those of its parts."""
    for token in sorted(ranks, key=lambda token: ranks[token]):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _lines(file: Path) -> Iterator[tuple[bytes, int]]:
    """The tokens of a file of tiktoken: a line has the bytes in base64, and the rank."""
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            text, rank = line.split()
            yield base64.b64decode(text, validate=True), int(rank)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: no token and its rank: {error}") from error


def _pattern(directory: Path, file: Path) -> str:
    """What `pat_str` is in a Python file beside a vocabulary: a text, or several that are joined.

    Raises:
      ValueError: no file has it.
    """
    for source in sorted(directory.glob("tokenization_*.py")):
        try:
            tree = ast.parse(source.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(name, ast.Name) and name.id == "pat_str" for name in targets):
                assert isinstance(node, ast.Assign)
                if pattern := _text(node.value):
                    return _checked_pattern(pattern, source)
    raise ValueError(
        f"{file}: the pattern that splits a text is not known; put the model's tokenization_*.py, "
        "whose pat_str is that pattern, beside it (it is not run), or a tokenizer.json"
    )


def _text(node: ast.expr) -> str | None:
    """The value of a text, or of `"|".join([...])` of texts; None of another expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        between, parts = _text(node.func.value), node.args[0]
        if node.func.attr != "join" or between is None or not isinstance(parts, ast.List):
            return None
        texts = [_text(part) for part in parts.elts]
        return None if None in texts else between.join(text for text in texts if text is not None)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _checked_pattern(pattern: Any, file: Path) -> str:
    if not isinstance(pattern, str) or not 0 < len(pattern) <= _LONGEST_PATTERN:
        raise ValueError(f"{file}: {pattern!r:.60} is no pattern of 1 to {_LONGEST_PATTERN}")
    return pattern


def _checked(ranks: dict[bytes, int], file: Path) -> dict[bytes, int]:
    """The ranks, if they are of a vocabulary.

    Raises:
      ValueError: they are not.
    """
    lacking = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if lacking or len(ranks) > _MOST_TOKENS or max(map(len, ranks)) > _LONGEST or b"" in ranks:
        raise ValueError(
            f"{file} is no vocabulary: {len(ranks)} tokens of up to "
            f"{max(map(len, ranks), default=0)} bytes, without {len(lacking)} of the 256 bytes"
        )
    if len(set(ranks.values())) < len(ranks) or min(ranks.values()) < 0:
        raise ValueError(f"{file} is no vocabulary: its ranks are not different numbers from 0 on")
    return ranks


def _tekken(file: Path) -> Ranked:
    """A vocabulary of Mistral: special tokens come first, then the others by rank.

    Raises:
      ValueError: the file is of another form, or names no special tokens.
    """
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        config, rows = fields["config"], fields["vocab"]
        count = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"]) - count
        special = {str(row["token_str"]): int(row["rank"]) for row in fields["special_tokens"]}
        ranks = {
            base64.b64decode(row["token_bytes"], validate=True): int(row["rank"]) + count
            for row in rows[:size]
        }
        pattern = config["pattern"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        kind = type(error).__name__
        raise ValueError(
            f"{file}: no vocabulary of version 3 or later can be read: {kind}: {error}"
        ) from error
    if not 0 < size <= _MOST_TOKENS or not 0 <= count <= _MOST_TOKENS or not ranks:
        raise ValueError(f"{file}: {size} tokens and {count} special ones are of no vocabulary")
    taken = set(special.values())
    special |= {f"<SPECIAL_{i}>": i for i in range(count) if i not in taken}
    known = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names = {name: token for name, token in known.items() if token in special}
    return Ranked(_checked(ranks, file), _checked_pattern(pattern, file), special, names)
