"""Duplicates and contamination: shared n-grams of words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


def grams(text: str, n: int) -> set[bytes]:
    """Hashes of the n-grams of normalised words; of the whole text if it has fewer than n words."""
    words = re.findall(r"[^\W_]+", text.lower())
    runs = [words[i : i + n] for i in range(len(words) - n + 1)] or ([words] if words else [])
    return {hashlib.blake2b(" ".join(run).encode(), digest_size=8).digest() for run in runs}


def index(texts: Iterable[str], n: int = 13) -> frozenset[bytes]:
    """All n-grams of the evaluation sets; 13 words as for GPT-3 (Brown et al. 2020)."""
    return frozenset().union(*(grams(text, n) for text in texts))


class Report(NamedTuple):
    """What is left of a set of texts, and what was taken out of it."""

    kept: list[int]
    """Indices, in order."""
    dropped: list[int]
    overlap: list[float]
    """Of each text, the share of its n-grams that was seen."""


def decontaminate(
    texts: Sequence[str], evaluation: frozenset[bytes], *, n: int = 13, most: float = 0.0
) -> Report:
    """Drop texts that share more than `most` of their n-grams with the evaluation sets.

    Args:
      texts: of the training set.
      evaluation: from `index`, with the same n.
      n: words of a gram.
      most: share that may be shared; 0 drops a text for a single n-gram.
    """
    overlap = []
    for text in texts:
        text_grams = grams(text, n)
        overlap.append(len(text_grams & evaluation) / len(text_grams) if text_grams else 0.0)
    return _report(overlap, [share > most for share in overlap])


def deduplicate(texts: Sequence[str], *, n: int = 5, most: float = 0.8) -> Report:
    """Drop texts whose n-grams one text kept before has, for more than a share `most`.

    Args:
      texts: of one set, in order of preference.
      n: words of a gram.
      most: 1 - 1e-9 finds exact repeats of normalised words only.
    """
    holders: dict[bytes, list[int]] = {}
    overlap, drop = [], []
    for i, text in enumerate(texts):
        text_grams = grams(text, n)
        shared: dict[int, int] = {}
        for gram in text_grams:
            for earlier in holders.get(gram, ()):
                shared[earlier] = shared.get(earlier, 0) + 1
        overlap.append(max(shared.values(), default=0) / len(text_grams) if text_grams else 0.0)
        drop.append(overlap[-1] > most)
        if not drop[-1]:
            for gram in text_grams:
                holders.setdefault(gram, []).append(i)
    return _report(overlap, drop)


def _report(overlap: list[float], drop: list[bool]) -> Report:
    kept_indices = [i for i, bad in enumerate(drop) if not bad]
    return Report(kept_indices, [i for i, bad in enumerate(drop) if bad], overlap)
