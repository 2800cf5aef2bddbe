"""What a tokenizer.json of others may ask for: steps that do not let a text grow without end.

The steps of a file run within the `tokenizers` library, in this process and without a limit. A
dozen replacements that each write ten times what they read take all memory for one letter, and an
empty pattern ends the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_GROWTH = 10_000
"""Most characters that all replacements together may make of one."""
_NESTED = 32
"""Steps within each other."""


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
        growth = 1.0
        for step in _replacements(fields.get(part), f"{file}: {part}"):
            pattern, content = step.get("pattern"), step.get("content", "")
            kind, text = next(iter(pattern.items())) if isinstance(pattern, dict) else ("", pattern)
            if not isinstance(text, str) or not text or not isinstance(content, str):
                raise ValueError(f"{file}: {part}: a Replace needs a pattern that is not empty")
            length = len(text) if kind == "String" else 1
            growth *= max(1.0, (len(content) + (kind != "String")) / length)
        if growth > _GROWTH or not math.isfinite(growth):
            raise ValueError(
                f"{file}: {part}: its Replace steps make {growth:.3g} characters of one, more than "
                f"{_GROWTH}; take the tokenizer of another source"
            )


def _replacements(value: Any, where: str, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The steps that replace text, in whatever they are nested."""
    if depth > _NESTED:
        raise ValueError(f"{where}: its steps are nested more than {_NESTED} deep")
    if isinstance(value, dict):
        if value.get("type") == "Replace":
            yield value
        for child in value.values():
            yield from _replacements(child, where, depth + 1)
    elif isinstance(value, list):
        for child in value:
            yield from _replacements(child, where, depth + 1)
