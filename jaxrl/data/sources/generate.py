"""Procedural problems: a random stream for each index, and splits that cannot overlap."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any, TypeVar

from jaxrl.data.types import Problem

T = TypeVar("T")

TEST_SHARE = 0.1
"""Share of a problem space that is held out for the test split."""

ASCII = "".join(map(chr, range(32, 127))) + "\n"
"""The alphabet of a task in plain English, for a character tokenizer."""


def rng(*parts: str | int) -> random.Random:
    """A random stream that depends on all of `parts` and on nothing else."""
    return random.Random("/".join(map(str, parts)))


def held_out(key: str, share: float = TEST_SHARE) -> bool:
    """Whether the problem named by `key` belongs to the test split: a hash, the same everywhere."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def draw(
    make: Callable[[random.Random], T],
    key: Callable[[T], str],
    stream: random.Random,
    *,
    split: str,
    share: float = TEST_SHARE,
    attempts: int = 10_000,
) -> T:
    """The first draw of `make` that belongs to `split`; "ood" takes any.

    Train and test are disjoint because the hash of the drawn content decides, not its index.
    `key` names what makes two problems the same.

    Raises:
      ValueError: no draw fits: the problem space is too small to hold anything out.
    """
    for _ in range(attempts):
        sample = make(stream)
        if split == "ood" or held_out(key(sample), share) == (split == "test"):
            return sample
    raise ValueError(
        f"split={split!r}: none of {attempts} draws belongs to it; the problem space is too small "
        "to divide, so raise the difficulty"
    )


def user_problem(task: str, key: str, prompt: str, answer: Any, **metadata: Any) -> Problem:
    """A problem that is one user turn; `key` names what makes two problems the same."""
    return Problem(
        id=f"{task}/{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}",
        prompt=prompt,
        answer=answer,
        messages=({"role": "user", "content": prompt},),
        metadata=metadata,
        domain=task,
    )
