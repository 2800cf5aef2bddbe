"""Questions over a fixed table of facts, which are recalled or looked up.

The table is the same in every problem, so a policy can know its facts by heart. Where it is its own
search engine, it writes what a search finds; where a real engine is plugged in, the engine does. An
episode is the same sequence of tokens in both cases, if what is recalled is true.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import string
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

RELATIONS = "123"
ENGINES = ("self", "tool", "gated")

_HELD_OUT = 0.25  # of the questions, which are few


class Ended(NamedTuple):
    """What an episode is rewarded for."""

    right: bool
    """Whether its answer is."""
    formed: bool
    """Whether all of its turns had the right form."""
    searches: int
    tool: bool
    """Whether the real engine was offered."""


@dataclasses.dataclass
class _Search:
    facts: Mapping[str, str]
    answer: str
    tool: bool
    left: int
    """Searches that are left."""
    asked: list[str] = dataclasses.field(default_factory=list)
    """Queries so far."""
    true: int = 0
    """Results so far that are facts."""


def task(
    hops: int = 2,
    ood_hops: int | None = None,
    names: int = 16,
    known: float = 0.75,
    engine: str = "self",
    single: float = 0.0,
    unknown: bool = True,
    reward: str = "answer",
) -> Task:
    """Questions over facts, in symbols.

    `21a` asks for what is in relation 2 to what is in relation 1 to `a`. A turn begins with the
    result of the search before it, in a line of its own, if the policy is its own search engine.
    Then it searches, `1a`, or answers, `=c`. With the real engine results are observations.

    A turn of another form ends the episode, and so does a search more than the longest question
    needs.

    Args:
      hops: facts between question and answer, in train and test problems; 1 to 3.
      ood_hops: of ood problems, to 4; None means one more than `hops`.
      names: that facts are about; each relation leads from every name to one of its own.
      known: share of the facts that `unknown` leaves in the train split.
      engine: `self`; `tool`, a real search engine; or `gated`: the real engine for questions that
        need a fact which is not known, whose prompts then begin with `?`, and `self` for others.
      single: share of the problems of the train split that ask for one fact.
      unknown: whether the train split has questions that need facts which are not known. Without
        them, it shows what is to be known by heart.
      reward: by name of `REWARDS`.
    """
    ood_hops = hops + 1 if ood_hops is None else ood_hops
    if not 1 <= hops < ood_hops <= 4:
        raise ValueError(f"hops={hops}, ood_hops={ood_hops}: need 1 <= hops < ood_hops <= 4")
    if not 4 <= names <= 26:
        raise ValueError(f"names={names}: have 4 to 26, as they are letters")
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: choose one of {', '.join(ENGINES)}")
    if not 0.5 <= known <= 1:
        raise ValueError(f"known={known} is a share, from 1/2 to 1")
    if not 0 <= single <= 1:
        raise ValueError(f"single={single} is a share, from 0 to 1")
    if reward not in REWARDS:
        raise ValueError(f"reward={reward!r}: choose one of {', '.join(REWARDS)}")

    letters = string.ascii_lowercase[:names]
    facts = table(names)
    queries = list(facts)
    answers = [f"={name}" for name in letters]
    first = tuple(letters)
    later = tuple(f"\n{action}" for action in (*queries, *answers))
    act = f"(?P<act>{'|'.join((*queries, *answers))})"
    plain, recalled = (re.compile(prefix + act) for prefix in ("", r"(?P<result>[a-z])\n"))
    heart = learned(names, known)

    def offered(question: str) -> bool:
        """Whether the real engine answers the searches of a question."""
        hard = any(query not in heart for query, _ in path(facts, question))
        return engine == "tool" or (engine == "gated" and hard)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        stream = generate.rng("recall", split, seed, index)
        alone = split == "train" and stream.random() < single
        steps = ood_hops if split == "ood" else hops
        allowed_queries = heart if split == "train" and not unknown else facts.keys()

        def draw(stream: random.Random) -> str:
            while True:
                count = 1 if alone else steps
                relations = "".join(stream.choice(RELATIONS) for _ in range(count))
                question = relations + stream.choice(letters)
                if all(query in allowed_queries for query, _ in path(facts, question)):
                    return question

        if alone:  # which are facts, and no problems of the test split
            question = draw(stream)
        else:
            question = generate.draw(draw, str, stream, split=split, share=_HELD_OUT)
        *_, (_, answer) = path(facts, question)
        mark = "?" * (engine == "gated" and offered(question))
        return generate.user_problem("recall", question, mark + question, answer, question=question)

    def begin(problem: Problem, seed: int) -> tuple[_Search, Opening]:
        tool = offered(problem.metadata["question"])
        search = _Search(facts, problem.answer, tool, ood_hops)
        return search, Opening(({"role": "user", "content": problem.prompt},), first)

    def ended(search: _Search, formed: bool, right: bool) -> Reply:
        searches = len(search.asked)
        parts = {
            "correct": float(right),
            "searches": float(searches),
            "calls": float(searches * search.tool),
            "true": search.true / searches if searches else 0.0,
        }
        earned = REWARDS[reward](Ended(right, formed, searches, search.tool))
        return Reply(reward=earned, parts=parts, done=True)

    def step(search: _Search, action: str) -> Reply:
        form = recalled if search.asked and not search.tool else plain
        read = form.fullmatch(action)
        if read is None:
            return ended(search, False, False)
        if search.asked:
            fact = search.facts[search.asked[-1]]
            search.true += read.groupdict().get("result", fact) == fact
        if read["act"].startswith("="):
            return ended(search, True, read["act"] == f"={search.answer}")
        if not search.left:
            return ended(search, False, False)
        search.left -= 1
        search.asked.append(read["act"])
        if not search.tool:
            return Reply(stop=later)
        message = {"role": "user", "content": search.facts[read["act"]]}
        return Reply((message,), stop=first, calls=1)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        question = problem.metadata["question"]
        steps = tuple(path(facts, question))
        acts = [*(query for query, _ in steps), f"={problem.answer}"]
        if offered(question):
            return tuple(acts)
        results = ["", *(f"{name}\n" for _, name in steps)]
        return tuple(result + act for result, act in zip(results, acts, strict=True))

    task = Task(
        name="recall",
        problem=problem,
        reward=unscored,
        alphabet=f"{letters}{RELATIONS}=?\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def ssrl(end: Ended) -> float:
    """SSRL's reward, by the authors' code: `0.9 right + 0.1 form`.

    The form is worth the half without a search, and nothing where a turn is malformed.
    """
    form = end.formed * (1.0 if end.searches else 0.5)
    return 0.9 * end.right + 0.1 * form


def retrieve(end: Ended) -> float:
    """UR2's first stage, by the authors' code, in units of its most, 8: calls, whatever the answer.

    1 for the form; where search is offered, 5 more for one call and 7 for several, and 1 less for
    each of a malformed turn and no call.
    """
    if not end.tool:
        return end.formed / 8
    wrong = (not end.formed) + (not end.searches)
    bonus = (0.0, 5.0, 7.0)[min(end.searches, 2)]
    return ((-wrong if wrong else 1) + bonus) / 8


def answer(end: Ended) -> float:
    """UR2's second stage, by the authors' code, in units of its most, 3: `2 right + form`."""
    return (2 * end.right + end.formed) / 3


REWARDS: Mapping[str, Callable[[Ended], float]] = {
    "ssrl": ssrl,
    "retrieve": retrieve,
    "answer": answer,
}


@functools.cache
def table(names: int) -> Mapping[str, str]:
    """What each query finds: `1a` what is in relation 1 to `a`.

    Args:
      names: how many there are.
    """
    letters = string.ascii_lowercase[:names]
    stream = generate.rng("recall", names)
    led = {relation: stream.sample(letters, names) for relation in RELATIONS}
    return {r + a: b for r in RELATIONS for a, b in zip(letters, led[r], strict=True)}


@functools.cache
def learned(names: int, share: float) -> frozenset[str]:
    """Queries about the facts that are known by heart.

    Args:
      names: how many there are.
      share: of the facts.
    """
    queries = sorted(table(names))
    stream = generate.rng("recall", "known", names)
    return frozenset(stream.sample(queries, round(share * len(queries))))


def path(facts: Mapping[str, str], question: str) -> Iterator[tuple[str, str]]:
    """The queries that lead to the answer of a question, and what each finds.

    Args:
      facts: see `table`.
      question: relations, the last one first, and a name.
    """
    *relations, name = question
    for relation in reversed(relations):
        query = relation + name
        name = facts[query]
        yield query, name
