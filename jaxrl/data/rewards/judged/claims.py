"""Facts that a text states: each claim is looked up in what is known."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

_ENDS = re.compile(r"[.!?;\n]+")


def thought(text: str) -> str:
    """What stands in the first `<think>...</think>`; without one, the whole text."""
    _, opened, rest = text.partition("<think>")
    inner, closed, _ = rest.partition("</think>")
    return inner if opened and closed else text


def claims(text: str) -> list[str]:
    """The sentences of a text, each once: in lower case, with single spaces and no full stop.

    A sentence is one claim here; language models that divide sentences further are left out.
    """
    plain = (" ".join(part.lower().split()) for part in _ENDS.split(text))
    return list(dict.fromkeys(part for part in plain if part))


def supported(stated: Sequence[str], known: Collection[str]) -> float:
    """The share of claims that are known; 0 where nothing is claimed.

    Args:
      stated: from `claims`.
      known: claims of the same form.
    """
    return sum(claim in known for claim in stated) / len(stated) if stated else 0.0


def factual(correct: Any, refused: Any, support: Any, formatted: Any) -> Any:
    """KnowRL: an answer that is wrong earns by the facts that it was drawn from.

    Saying that one does not know is worth more than a wrong answer and less than a right one. Facts
    count under wrong answers alone, so that no list of facts is worth more than an answer.

    Formula: `2 f - 1 + 2 c + u - (1 - c - u) (1 - s)`, of 0 or 1 each: f formatted, c correct, u
      refused; s the share of supported claims
    Paper: Ren et al. 2025, "KnowRL: Exploring Knowledgeable Reinforcement Learning for Factuality"
      (as in the authors' code)

    Args:
      correct, refused, support, formatted: numbers, or arrays of one shape; no answer is both
        correct and refused.

    Returns:
      From -2 to 3, of the same shape.
    """
    return 2 * formatted - 1 + 2 * correct + refused - (1 - correct - refused) * (1 - support)
