"""Questions over real facts about countries and cities, with a search engine to ask.

A question leads over several facts, and its answer is unique among all facts. No test problem ends
in a country that a train problem ends in, so an answer that was learned in training is not asked
for again: it has to be found.
"""

from __future__ import annotations

import dataclasses
import random

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.environments.search import atlas, engine
from jaxrl.data.environments.tools import definition
from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

_SHARE = 200
"""Paths of a kind that count when a kind is drawn: there are many more cities than countries."""
_Drawn = tuple[tuple[str, ...], atlas.Path]


@dataclasses.dataclass
class _Reading:
    links: tuple[str, ...]
    path: atlas.Path
    left: int
    """Searches that are left."""
    seed: int
    asked: int = 0
    """Searches so far."""
    found: set[str] = dataclasses.field(default_factory=set)
    """Sentences."""

    @property
    def needed(self) -> list[atlas.Fact]:
        """The facts that lead to the answer."""
        return _needed(self.links, self.path)

    @property
    def known(self) -> float:
        """The part of these that was found."""
        return sum(fact.sentence in self.found for fact in self.needed) / len(self.links)


def task(
    hops: int = 2,
    ood_hops: int | None = None,
    searches: int | None = None,
    passages: int = 3,
    noise: float = 0.0,
    failures: float = 0.0,
    latency: float = 0.0,
    credit: float = 0.0,
    role: str = "tool",
) -> Task:
    """Questions over real facts (extra `facts`).

    The policy calls the tool `search`, which is BM25 over all facts. A turn without a call is its
    answer: the last name in it that is of the kind asked for.

    Args:
      hops: facts between question and answer, in train and test problems; 1 to 3.
      ood_hops: of ood problems, to 4; None means one more than `hops`.
      searches: that an episode may have; None: twice as many as facts are needed; 0: no search
        engine.
      passages: facts that a search gives at most.
      noise: probability that a search finds another fact than it should.
      failures: probability that a search fails, which the policy is told.
      latency: seconds that each search takes.
      credit: part of the reward of 1 that is for finding the facts between question and answer, in
        equal shares; the rest is for the answer.
      role: of the messages that give results; `user` where the chat template knows no `tool`.
    """
    ood_hops = hops + 1 if ood_hops is None else ood_hops
    if not 1 <= hops < ood_hops <= atlas.LONGEST:
        raise ValueError(
            f"hops={hops}, ood_hops={ood_hops}: need 1 <= hops < ood_hops <= {atlas.LONGEST}"
        )
    if searches is not None and searches < 0:
        raise ValueError(f"searches={searches} must be None or at least 0")
    if passages < 1:
        raise ValueError(f"passages={passages}: a search gives 1 or more")
    if not 0 <= credit <= 1:
        raise ValueError(f"credit={credit} is a part of the reward, from 0 to 1")
    faults = engine.checked(noise, failures, latency)

    def allowed(problem: Problem) -> int:
        return 2 * len(problem.metadata["links"]) if searches is None else searches

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        paths_by_links = atlas.paths(ood_hops if split == "ood" else hops)
        shares = {links: min(len(paths), _SHARE) for links, paths in paths_by_links.items()}

        def draw(stream: random.Random) -> _Drawn:
            (links,) = stream.choices(list(shares), list(shares.values()))
            return links, stream.choice(paths_by_links[links])

        stream = generate.rng("geography", split, seed, index)
        links, path = generate.draw(
            draw, key=lambda sample: atlas.country(*sample), stream=stream, split=split
        )
        prompt = atlas.question(links, path[0])
        return generate.user_problem(
            "geography", prompt, prompt, path[-1], links=list(links), path=list(path),
            country=atlas.country(links, path),
        )  # fmt: skip

    def begin(problem: Problem, seed: int) -> tuple[_Reading, Opening]:
        links, path = (tuple(problem.metadata[key]) for key in ("links", "path"))
        reading = _Reading(links, path, allowed(problem), seed)
        offered = (_search(reading).schema,) if reading.left else ()
        return reading, Opening(({"role": "user", "content": problem.prompt},), tools=offered)

    def _search(reading: _Reading) -> Tool:
        def run(query: str) -> str:
            """Finds facts about countries and cities.

            Args:
              query: words to look for.
            """
            if not reading.left:
                raise ValueError("no search is left")
            reading.left -= 1
            reading.asked += 1
            sentences = engine.search(
                faults, reading.seed, reading.asked, tuple(atlas.sentences()),
                lambda: atlas.index()(query, passages),
            )  # fmt: skip
            reading.found.update(sentences)
            return "\n".join(sentences) or "nothing found"

        return definition.tool(run, name="search")

    def step(reading: _Reading, action: str) -> Reply:
        before = reading.known
        outputs = definition.results([_search(reading)], action) if reading.left else []
        parts = {"correct": 0.0, "found": reading.known}
        if outputs:
            message = {"role": role, "content": definition.joined(outputs)}
            earned = credit * (reading.known - before)
            return Reply((message,), earned, parts, calls=len(outputs))
        kind = atlas.LINKS[reading.links[-1]].target
        right = atlas.find_names(extract.spoken(action), kind)[-1:] == [reading.path[-1]]
        return Reply(
            reward=(1 - credit) * right, parts=parts | {"correct": float(right)}, done=True
        )

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        links, path = (tuple(problem.metadata[key]) for key in ("links", "path"))
        queries = [
            atlas.LINKS[fact.link].sentence.format(fact.subject, "").strip(" .")
            for fact in _needed(links, path)
        ]
        calls = [
            write_call(Call("search", {"query": query})) for query in queries[: allowed(problem)]
        ]
        return (*calls, problem.answer)

    task = Task(
        name="geography",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII,
        description=__doc__,
        pure=not latency,
        turns=Environment(
            begin,
            step,
            roles=(role,),
            gold=None if noise or failures else gold,
            tools=True,
            seconds=(lambda problem, action: latency * allowed(problem)) if latency else None,
        ),
    )
    return task


def _needed(links: tuple[str, ...], path: atlas.Path) -> list[atlas.Fact]:
    """The facts of a path."""
    return [atlas.Fact(*triple) for triple in zip(links, path, path[1:], strict=False)]
