"""Small worlds of made-up facts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

RELATIONS = (
    "{} lives in {}.",
    "{} is a city in {}.",
    "The language of {} is {}.",
    "{} is written in the script {}.",
)


class Fact(NamedTuple):
    """`subject` has `object` in the relation of that index."""

    relation: int
    subject: str
    object: str

    @property
    def sentence(self) -> str:
        """In words."""
        return RELATIONS[self.relation].format(self.subject, self.object)


def path(facts: Sequence[Fact], subject: str) -> Iterator[str]:
    """A name, and those that follow from it fact by fact."""
    following = {fact.subject: fact.object for fact in facts}
    yield subject
    while subject in following:
        subject = following[subject]
        yield subject


def world(stream: random.Random, hops: int, names: int, pool: Sequence[str]) -> tuple[Fact, ...]:
    """A fact about each name but those of the last kind, in random order.

    Args:
      stream: of random numbers.
      hops: kinds of facts.
      names: of each kind.
      pool: where names come from.
    """
    count = (hops + 1) * names
    sample = stream.sample(pool, count)
    kinds = [sample[i : i + names] for i in range(0, count, names)]
    facts = [
        Fact(relation, subject, stream.choice(kinds[relation + 1]))
        for relation in range(hops)
        for subject in kinds[relation]
    ]
    stream.shuffle(facts)
    return tuple(facts)
