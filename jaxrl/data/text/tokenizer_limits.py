"""What a tokenizer.json of others may ask for: steps that do not let a text grow without end.

The steps of a file run within the `tokenizers` library, in this process and without a limit. A
dozen replacements that each write ten times what they read take all memory for one letter, and an
empty pattern ends the process.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_GROWTH = 10_000
"""Most characters that all steps of a part together may make of one."""
_NESTED = 32
"""Steps within each other."""
_MOST = 300
"""Steps of a part."""
_ENTRIES = 10_000
"""Values of a part, as the entries of a template."""
_ADDED = 1 << 21
"""Characters of all added tokens; those of the largest vocabularies have some 100,000."""


def check(file: Path) -> None:
    """Refuse a tokenizer.json whose steps could run without end.

    Raises:
      ValueError: it does not hold a tokenizer, or one of its steps is refused.
    """
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: no tokenizer can be read: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{file}: no tokenizer can be read: it holds no fields")
    for part in _STEPS:
        values = list(_values(fields.get(part), f"{file}: {part}"))
        steps = [value for value in values if isinstance(value, dict) and "type" in value]
        if len(steps) > _MOST or len(values) > _ENTRIES:
            raise ValueError(
                f"{file}: {part}: {len(steps)} steps of {len(values)} values are more than {_MOST} "
                f"and {_ENTRIES}; take the tokenizer of another source"
            )
        growth = math.prod(_growth(step, f"{file}: {part}") for step in steps)
        if growth > _GROWTH or not math.isfinite(growth):
            raise ValueError(
                f"{file}: {part}: its steps make {growth:.3g} characters of one, more than "
                f"{_GROWTH}; take the tokenizer of another source"
            )
    added = fields.get("added_tokens")
    tokens = (
        [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    )
    if (length := sum(len(str(token.get("content", ""))) for token in tokens)) > _ADDED:
        raise ValueError(
            f"{file}: added_tokens have {length} characters, more than {_ADDED}; take the "
            "tokenizer of another source"
        )


def _growth(step: dict[str, Any], where: str) -> float:
    """Most characters that a step makes of one."""
    match step.get("type"):
        case "Replace":
            pattern, content = step.get("pattern"), step.get("content", "")
            kind, text = next(iter(pattern.items())) if isinstance(pattern, dict) else ("", pattern)
            if not isinstance(text, str) or not text or not isinstance(content, str):
                raise ValueError(f"{where}: a Replace needs a pattern that is not empty")
            length = len(text) if kind == "String" else 1
            return max(1.0, (len(content) + (kind != "String")) / length)
        case "Prepend":
            return 1.0 + len(str(step.get("prepend", "")))
        case "ByteLevel":  # which writes two bytes for one that is not ASCII
            return 2.0
        case "Precompiled":
            return _longest(step.get("precompiled_charsmap"), where)
    return 1.0


def _longest(charsmap: Any, where: str) -> float:
    """Bytes of the longest text that a map of characters, as sentencepiece writes it, has for one:
    a size, so many bytes that find them, and the texts, each ended by a zero."""
    try:
        raw = base64.b64decode(charsmap or b"", validate=True)
        (size,) = struct.unpack_from("<I", raw) if raw else (0,)
    except (TypeError, ValueError, struct.error) as error:
        raise ValueError(f"{where}: precompiled_charsmap cannot be read: {error}") from error
    texts = re.finditer(rb"[^\0]+", raw[4 + size :])
    return max((float(text.end() - text.start()) for text in texts), default=1.0)


def _values(value: Any, where: str, depth: int = 0) -> Iterator[Any]:
    """A value and those within it."""
    if depth > _NESTED:
        raise ValueError(f"{where}: its steps are nested more than {_NESTED} deep")
    yield value
    children = value.values() if isinstance(value, dict) else value
    for child in children if isinstance(value, dict | list) else ():
        yield from _values(child, where, depth + 1)
