"""Faults that a search engine has on demand: other facts than it should find, failures, latency.

They follow from the episode's seed and the number of its search, so they are the same for all
members of a group and when an episode is played again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Faults(NamedTuple):
    """Of each search."""

    noise: float
    """Probability that it finds something else."""
    failures: float
    """Probability that it fails."""
    latency: float
    """Seconds that it takes."""


def checked(noise: float, failures: float, latency: float) -> Faults:
    """Faults within their ranges.

    Raises:
      ValueError: one is not.
    """
    for field, chance in (("noise", noise), ("failures", failures)):
        if not 0 <= chance < 1:
            raise ValueError(f"{field}={chance} is no probability below 1")
    if latency < 0:
        raise ValueError(f"latency={latency} must be at least 0, in seconds")
    return Faults(noise, failures, latency)


def search(
    faults: Faults, seed: int, number: int, everything: Sequence[T], find: Callable[[], list[T]]
) -> list[T]:
    """What `find` gives, or what a fault makes of it.

    Args:
      faults: of the search engine.
      seed: of the episode.
      number: of its searches so far, this one included.
      everything: that could be found.
      find: what should be found.

    Raises:
      ValueError: the search failed.
    """
    time.sleep(faults.latency)
    chance = random.Random(f"{seed}/{number}")
    if chance.random() < faults.failures:
        raise ValueError("the search engine does not answer; ask again")
    if chance.random() < faults.noise:
        return [chance.choice(everything)]
    return find()
