"""Questions over a small world of facts in several search regimes, and their synthesis.

A regime says what has to be found. `hops`: one fact leads to the next. `count`: all facts about a
name, of which a search finds one at a time. `compare`: the numbers of several names.

A question is composed of facts. They are all facts of a world, or those that a synthesiser has
found with the search engine; its answer then holds because nothing that it needs was left unfound.
"""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

from jaxrl.data.environments.search.facts import RELATIONS, Fact, path, world

REGIMES = ("hops", "count", "compare")
NUMBERS = "123456789"

_NUMBER = len(RELATIONS)  # relation of a name and its number, which has no words


class Question(NamedTuple):
    """What is asked, and what leads to the answer."""

    regime: str
    about: tuple[str, ...]
    """Names in the question."""
    needed: tuple[tuple[str, str], ...]
    """Subject and object of each fact that leads to the answer, in order."""
    answer: str

    @property
    def prompt(self) -> str:
        """In symbols: `2a` asks for what is two facts away from `a`, `#a` for the number of facts
        about `a`, `>ab` for the one of `a` and `b` with the larger number."""
        mark = {"hops": str(len(self.needed)), "count": "#", "compare": ">"}[self.regime]
        return mark + "".join(self.about)

    @property
    def calls(self) -> tuple[str, ...]:
        """Searches that find the facts; of `count`, the last shows that there are no more."""
        if self.regime == "count":
            return self.about * (len(self.needed) + 1)
        return tuple(subject for subject, _ in self.needed)


def populated(
    regime: str, stream: random.Random, size: int, names: int, pool: Sequence[str]
) -> tuple[Fact, ...]:
    """The facts of a world, in random order.

    Args:
      regime: of the questions.
      stream: of random numbers.
      size: of a question: facts that it needs, or at most needs.
      names: of each kind; of `compare`, in all.
      pool: where names come from.
    """
    if regime == "compare":
        pairs = zip(stream.sample(pool, names), stream.sample(NUMBERS, names), strict=True)
        return tuple(Fact(_NUMBER, name, number) for name, number in pairs)
    return world(stream, size if regime == "hops" else 1, names, pool)


def results(regime: str, facts: Sequence[Fact], query: str, page: int) -> list[Fact]:
    """What a search for a name finds: the facts of which it is the subject.

    Of `count`, the facts that name it, one at each search: `page` says how many came before.
    """
    if regime != "count":
        return [fact for fact in facts if fact.subject == query]
    mentions = [fact for fact in facts if query in (fact.subject, fact.object)]
    return mentions[page : page + 1]


def composed(
    regime: str, facts: Sequence[Fact], size: int, ended: Collection[str]
) -> list[Question]:
    """All questions that the facts answer, each once.

    Args:
      regime: of the questions.
      facts: that are known.
      size: facts that a question needs; of `count`, at most.
      ended: names about which no more is to be found.
    """
    if regime == "hops":
        paths = (tuple(path(facts, fact.subject)) for fact in facts if not fact.relation)
        return [
            Question(regime, chain[:1], tuple(itertools.pairwise(chain)), chain[-1])
            for chain in paths
            if len(chain) == size + 1
        ]
    if regime == "compare":
        return [
            Question(
                regime,
                tuple(fact.subject for fact in combination),
                tuple((fact.subject, fact.object) for fact in combination),
                max(combination, key=lambda fact: int(fact.object)).subject,
            )
            for combination in itertools.combinations(facts, size)
        ]
    matching = collections.defaultdict(list)
    for fact in facts:
        matching[fact.object].append((fact.subject, fact.object))
    return [
        Question(regime, (name,), tuple(pairs), str(len(pairs)))
        for name, pairs in matching.items()
        if name in ended and len(pairs) <= size
    ]


def explored(
    regime: str, stream: random.Random, facts: Sequence[Fact], searches: int
) -> tuple[list[Fact], set[str]]:
    """What a synthesiser finds with the search engine: the facts, and the names it is done with.

    It goes on with a name that may have more results, else with one that it has come across and not
    searched for, else with any other of the world.

    Args:
      regime: of the questions that are to be composed.
      stream: breaks ties.
      facts: of the world.
      searches: that it makes at most.
    """
    entities = {name for fact in facts for name in (fact.subject, fact.object)}
    names = sorted(entities.difference(NUMBERS))
    found_facts: dict[Fact, None] = {}
    pages: collections.Counter[str] = collections.Counter()
    ended = set[str]()
    for _ in range(searches):
        left = [name for name in names if name not in ended]
        met = {name for fact in found_facts for name in (fact.subject, fact.object)}
        started_names, met_names = (
            [n for n in left if n in collection] for collection in (pages, met)
        )
        if not left:
            break
        name = stream.choice(started_names or met_names or left)
        new = results(regime, facts, name, pages[name])
        pages[name] += 1
        found_facts |= dict.fromkeys(new)
        if regime != "count" or not new:
            ended.add(name)
    return list(found_facts), ended


def draw_question(
    regime: str,
    stream: random.Random,
    size: int,
    names: int,
    pool: Sequence[str],
    *,
    searches: int = 0,
    least: int = 1,
) -> tuple[Question, tuple[Fact, ...]]:
    """A question, and the facts of its world.

    Args:
      regime: of the question.
      stream: of random numbers.
      size: facts that it needs; of `count`, at most.
      names: see `populated`.
      pool: where names come from.
      searches: of a synthesiser that composes it; 0: it is composed of all facts of the world.
      least: facts that a question of `count` needs at least. Its answers are equally frequent.
    """
    count = stream.randint(least, size) if regime == "count" else size
    while True:
        facts = populated(regime, stream, size, names, pool)
        known_facts: Sequence[Fact] = facts
        ended = {fact.object for fact in facts}
        if searches:
            known_facts, ended = explored(regime, stream, facts, searches)
        candidates = [
            question
            for question in composed(regime, known_facts, size, ended)
            if len(question.needed) == count
        ]
        if candidates:
            return stream.choice(candidates), facts
