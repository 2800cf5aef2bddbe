"""A measurement as Markdown."""

from __future__ import annotations
from typing import Any
def render(whole: dict[str, Any]) -> str:
    """All."""
    return ""
