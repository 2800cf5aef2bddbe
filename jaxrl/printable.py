"""Text of models, files and servers, made fit to be printed: one function for all that shows it.

A completion, a file or an error message may hold escape sequences that change the title of a
terminal, write to its clipboard or hide text, and marks that change the direction of reading. Such
characters are shown as Python writes them in a string, as in `\\x1b` and `\\u202e`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

_JOINERS = "\u200c\u200d"  # parts of words in some scripts, and of emoji
_SHOWN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # categories that steer what shows them


def printable(text: object, *, lines: bool = False) -> str:
    """The text with every control character visible; what was printable stays as it is.

    Args:
      text: of any origin; other than a string, as `str` writes it.
      lines: keep ends of lines and tabs; else each becomes a space.
    """
    string = str(text)
    if string.isascii() and string.isprintable():
        return string
    return "".join(_visible(character, lines) for character in string)


def _visible(character: str, lines: bool) -> str:
    if character in "\n\t":
        return character if lines else " "
    if unicodedata.category(character) not in _SHOWN or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def printable_values(value: Any) -> Any:
    """Plain values with `printable` applied to every text, names of entries included."""
    if isinstance(value, Mapping):
        return {printable_values(name): printable_values(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [printable_values(entry) for entry in value]
    return printable(value, lines=True) if isinstance(value, str) else value
