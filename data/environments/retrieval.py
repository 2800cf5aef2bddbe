"""Questions of several hops over a small world of made-up facts, with a search engine to ask.

Each problem has facts of its own: people live in cities, cities lie in countries, and so on. So an
answer cannot be remembered, only found, one fact after another. Answers are unique.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import string
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxrl.data import generate
from jaxrl.data.environments import Environment, Opening, Reply, toolbox, tools, unscored
from jaxrl.data.environments.formats import Call, written
from jaxrl.data.environments.tools import Tool
from jaxrl.data.types import Problem, Task

RELATIONS = (
    "{} lives in {}.",
    "{} is a city in {}.",
    "The language of {} is {}.",
    "{} is written in the script {}.",
)
QUESTIONS = (
    "In which city does {} live?",
    "In which country does {} live?",
    "Which language is spoken where {} lives?",
    "In which script is the language written that is spoken where {} lives?",
)
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
_NAMES = ["".join(each).capitalize() for each in itertools.product(_SYLLABLES, repeat=3)]
_PASSAGES = 2  # that a search gives, in words
NOTHING = "-"  # found, in symbols


class Fact(NamedTuple):
    """`subject` has `object` in the relation of that index."""

    relation: int
    subject: str
    object: str

    @property
    def sentence(self) -> str:
        """In words."""
        return RELATIONS[self.relation].format(self.subject, self.object)


@dataclasses.dataclass
class _Library:
    facts: tuple[Fact, ...]
    needed: frozenset[tuple[str, str]]
    """Subject and object of the facts that lead to the answers."""
    answers: tuple[str, ...]
    left: int
    """Searches that are left."""
    seed: int
    right: list[bool] = dataclasses.field(default_factory=list)
    """Whether each answer so far was."""
    asked: int = 0
    """Searches so far."""
    found: set[Fact] = dataclasses.field(default_factory=set)


def task(
    hops: int = 2,
    ood_hops: int | None = None,
    names: int = 4,
    searches: int | None = None,
    noise: float = 0.0,
    failures: float = 0.0,
    latency: float = 0.0,
    credit: float = 0.0,
    malformed: float = 0.0,
    masks: int = 0,
    instructions: bool = False,
    role: str = "tool",
) -> Task:
    """Questions over facts.

    With `instructions` questions and facts are sentences, and the policy calls the tool `search`;
    the last name in a turn without a call is its answer.

    Without, all is in symbols, for a small model from nothing. Names are letters, and `2a` asks for
    what is two facts away from `a`. A turn is a name to search for. It finds `ab`: `b` is one fact
    away from `a`. A turn that begins with `=`, or has no search left, is the answer. A turn ends
    with its first letter. With `masks` a prompt is not a question but facts whose objects are
    masked, `a-d-`, and the answers are these, a turn each (MaskSearch's pre-training).

    Args:
      hops: facts between question and answer, in train and test problems; 1 to 3.
      ood_hops: of ood problems, to 4; None means one more than `hops`.
      names: of each kind; a world has a fact about each name but those of the last kind.
      searches: that an episode may have; None: as many as facts are needed; 0: no search engine.
      noise: probability that a search finds another fact than it should.
      failures: probability that a search fails, which the policy sees.
      latency: seconds that each search takes.
      credit: part of the reward of 1 that is for finding the facts between question and answer, in
        equal shares; the rest is for the answer.
      malformed: reward of an answer that names nothing there is, 0 or less.
      masks: facts of a prompt whose objects are masked, in place of a question; 0: a question.
      instructions: sentences and tool calls, for a model that can read them.
      role: of the messages that give results in words; `user` where the chat template knows no
        `tool`.
    """
    ood_hops = hops + 1 if ood_hops is None else ood_hops
    if not 1 <= hops < ood_hops <= len(RELATIONS):
        raise ValueError(
            f"hops={hops}, ood_hops={ood_hops}: need 1 <= hops < ood_hops <= {len(RELATIONS)}"
        )
    if not 2 <= names <= 5:
        raise ValueError(f"names={names}: a kind has 2 to 5, so that letters suffice")
    if searches is not None and searches < 0:
        raise ValueError(f"searches={searches} must be None or at least 0")
    for field, chance in (("noise", noise), ("failures", failures)):
        if not 0 <= chance < 1:
            raise ValueError(f"{field}={chance} is no probability below 1")
    if not 0 <= credit <= 1:
        raise ValueError(f"credit={credit} is a part of the reward, from 0 to 1")
    if malformed > 0:
        raise ValueError(f"malformed={malformed} is a penalty: give 0 or less")
    if not 0 <= masks <= 2 * hops or (masks and instructions):
        raise ValueError(
            f"masks={masks}, instructions={instructions}: mask up to {2 * hops} facts, two a hop, "
            "and in symbols alone"
        )
    if latency < 0:
        raise ValueError(f"latency={latency} must be at least 0, in seconds")

    letters = string.ascii_lowercase[: (ood_hops + 1) * names]
    stops = () if instructions else tuple(letters)

    def problem(split: str, seed: int, index: int) -> Problem:
        made.check_split(split)
        steps = ood_hops if split == "ood" else hops

        def draw(stream: random.Random) -> tuple[Any, tuple[Fact, ...]]:
            facts = world(stream, steps, names, _NAMES if instructions else letters)
            if masks:
                return tuple(tuple(fact) for fact in stream.sample(facts, masks)), facts
            return stream.choice([fact.subject for fact in facts if not fact.relation]), facts

        stream = generate.rng("retrieval", split, seed, index)
        subject, facts = generate.draw(draw, key=repr, stream=stream, split=split)
        if masks:
            text = "".join(f"{name}{NOTHING}" for _, name, _ in subject)
            return generate.asked(
                "retrieval", repr((subject, facts)), text, "".join(each[2] for each in subject),
                facts=tuple(tuple(fact) for fact in facts),
                needed=tuple(tuple(each[1:]) for each in subject),
            )  # fmt: skip
        asked = QUESTIONS[steps - 1].format(subject) if instructions else f"{steps}{subject}"
        chain = tuple(path(facts, subject))
        plain = tuple(tuple(fact) for fact in facts)  # as a checkpoint can keep them
        return generate.asked(
            "retrieval", repr((subject, facts)), asked, chain[-1], facts=plain, chain=chain
        )

    def begin(problem: Problem, seed: int) -> tuple[_Library, Opening]:
        facts = tuple(Fact(*fact) for fact in problem.metadata["facts"])
        needed, answers = wanted(problem)
        allowed = len(needed) if searches is None else searches
        library = _Library(facts, frozenset(needed), answers, allowed, seed)
        said = ({"role": "user", "content": problem.prompt},)
        offered = (_search(library),) if instructions and allowed else ()
        return library, Opening(said, stops, tools=tuple(each.schema for each in offered))

    def look(library: _Library, query: str) -> list[Fact]:
        """What a search finds."""
        time.sleep(latency)
        library.asked += 1
        chance = random.Random(f"{library.seed}/{library.asked}")
        if chance.random() < failures:
            raise ValueError("the search engine does not answer; ask again")
        if chance.random() < noise:
            found = [chance.choice(library.facts)]
        elif instructions:
            sentences = {fact.sentence: fact for fact in library.facts}
            find = toolbox.ranked(list(sentences))
            found = [sentences[each] for each in find(query, _PASSAGES)]
        else:
            found = [fact for fact in library.facts if fact.subject == query]
        library.found.update(found)
        return found

    def _search(library: _Library) -> Tool:
        def run(query: str) -> str:
            """Finds facts.

            Args:
              query: words to look for.
            """
            found = look(library, query)
            return "\n".join(fact.sentence for fact in found) or "nothing found"

        return tools.tool(run, name="search")

    def earned(library: _Library) -> float:
        """The reward so far for facts that lead to the answer."""
        known = {(fact.subject, fact.object) for fact in library.found}
        return credit * len(library.needed & known) / len(library.needed)

    def judged(library: _Library, words: Sequence[str]) -> Reply:
        """Whether the last name among the words is the answer that is due."""
        known = {name for fact in library.facts for name in (fact.subject, fact.object)}
        named = [word for word in words if word in known]
        right = named[-1:] == [library.answers[len(library.right)]]
        library.right.append(right)
        library.left, count = 0, len(library.answers)
        reward = (1 - credit) * right / count if named else malformed
        parts = {"correct": sum(library.right) / count}
        return Reply(
            reward=reward, parts=parts, done=len(library.right) == count,
            stop=() if instructions else stops,
        )  # fmt: skip

    def in_words(library: _Library, action: str) -> Reply:
        before = earned(library)
        outputs = tools.results([_search(library)], action) if library.left else []
        if not outputs:
            return judged(library, [word.capitalize() for word in re.findall(r"\w+", action)])
        library.left -= 1
        said = {"role": role, "content": "\n".join(outputs)}
        return Reply((said,), earned(library) - before, calls=len(outputs))

    def in_symbols(library: _Library, action: str) -> Reply:
        if not library.left or action.startswith("="):
            return judged(library, [action.removeprefix("=")])
        before = earned(library)
        library.left -= 1
        try:
            found = [fact.subject + fact.object for fact in look(library, action)]
        except ValueError:
            found = []
        said = {"role": "user", "content": "".join(found) or NOTHING}
        return Reply((said,), earned(library) - before, stop=stops, calls=1)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        needed, answers = wanted(problem)
        allowed = len(needed) if searches is None else searches
        calls = [subject for subject, _ in needed][:allowed]
        if instructions:
            asked = [RELATIONS[i].format(name, "").strip(" .") for i, name in enumerate(calls)]
            return (*(written(Call("search", {"query": each})) for each in asked), *answers)
        first, *rest = answers
        return (*calls, "=" * (allowed > len(calls)) + first, *rest)

    made = Task(
        name="retrieval",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII if instructions else f"{letters}{hops}{ood_hops}={NOTHING}\n",
        description=__doc__,
        pure=not latency,
        turns=Environment(
            begin,
            in_words if instructions else in_symbols,
            roles=(role if instructions else "user",),
            gold=None if noise or failures else gold,
        ),
    )
    return made


def wanted(problem: Problem) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Subject and object of the facts that lead to the answers of a problem, and the answers."""
    if "needed" in problem.metadata:
        needed = tuple((subject, object_) for subject, object_ in problem.metadata["needed"])
        return needed, tuple(object_ for _, object_ in needed)
    chain = problem.metadata["chain"]
    return tuple(itertools.pairwise(chain)), (chain[-1],)


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
    drawn = stream.sample(pool, count)
    kinds = [drawn[i : i + names] for i in range(0, count, names)]
    facts = [
        Fact(relation, subject, stream.choice(kinds[relation + 1]))
        for relation in range(hops)
        for subject in kinds[relation]
    ]
    stream.shuffle(facts)
    return tuple(facts)
