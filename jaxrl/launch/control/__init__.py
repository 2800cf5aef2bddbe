"""`jaxrl control ALGORITHM [flags]`, and what is done with its runs: `play`, `export`, `data`."""

from __future__ import annotations

import importlib

TOOLS = ("data", "export", "play")
"""Modules of this package that are commands of their own; any other word is an algorithm."""


def main(argv: list[str]) -> int:
    """Train an algorithm, or use one of the tools; without a word, list the algorithms."""
    name = argv[0] if argv and argv[0] in TOOLS else "run"
    rest = argv[1:] if name != "run" else argv
    return importlib.import_module(f"{__name__}.{name}").main(rest)
