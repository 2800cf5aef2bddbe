"""Questions over a small world of made-up facts, with a search engine to ask.

Each problem has facts of its own: people live in cities, cities lie in countries, and so on. So an
answer cannot be remembered, only found, one fact after another. Answers are unique.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import random
import re
import string
from collections.abc import Sequence
from typing import Any

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.environments.search import engine, questions
from jaxrl.data.environments.search.facts import RELATIONS, Fact, world
from jaxrl.data.environments.search.questions import NUMBERS, REGIMES
from jaxrl.data.environments.tools import definition, toolbox
from jaxrl.data.environments.tools.definition import Tool
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

QUESTIONS = (
    "In which city does {} live?",
    "In which country does {} live?",
    "Which language is spoken where {} lives?",
    "In which script is the language written that is spoken where {} lives?",
)
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
_NAMES = ["".join(syllables).capitalize() for syllables in itertools.product(_SYLLABLES, repeat=3)]
_PASSAGES = 2  # that a search gives, in words
NOTHING = "-"  # found, in symbols


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
    pages: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Searches for each name that found what they should."""


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
    regime: str = "hops",
    synthesis: int = 0,
    instructions: bool = False,
    role: str = "tool",
    search: str = "exact",
) -> Task:
    """Questions over facts.

    With `instructions` questions and facts are sentences, and the policy calls the tool `search`;
    the last name in a turn without a call is its answer.

    Without, all is in symbols, for a small model from nothing. Names are letters, and `2a` asks for
    what is two facts away from `a`. A turn is a name to search for. It finds `ab`: `b` is one fact
    away from `a`. A turn that begins with `=`, or has no search left, is the answer. A turn ends
    with its first letter. With `masks` a prompt is not a question but facts whose objects are
    masked, `a-d-`, and the answers are these, a turn each (MaskSearch's pre-training).

    Other regimes are in symbols alone. Of `count`, `#c` asks for the number of facts about `c`: a
    search for `c` finds one of them, the next search for `c` another one, and one that finds
    nothing shows that these were all. The answer is a digit, and a digit is an answer. Of
    `compare`, `>ab` asks for the name with the larger number, and a search for `a` finds `a7`.

    Args:
      hops: facts between question and answer, in train and test problems; 1 to 3. Of `count`, the
        most that the answer may be; of `compare`, names to compare, 2 or 3.
      ood_hops: of ood problems, to 4; None means one more than `hops`. Of `count`, the answer.
      names: of each kind; a world has a fact about each name but those of the last kind. Of
        `compare`, in all.
      searches: that an episode may have; None: as many as facts are needed, and of `count` as
        many as `hops` and one; 0: no search engine.
      noise: probability that a search finds another fact than it should.
      failures: probability that a search fails, which the policy sees.
      latency: seconds that each search takes.
      credit: part of the reward of 1 that is for finding the facts between question and answer, in
        equal shares; the rest is for the answer.
      malformed: reward of an answer that names nothing there is, 0 or less.
      masks: facts of a prompt whose objects are masked, in place of a question; 0: a question.
      regime: what has to be found: hops, count or compare.
      synthesis: searches of a synthesiser, which explores the world of a train problem and composes
        the question of what it has found; 0: the question is composed of the whole world.
      instructions: sentences and tool calls, for a model that can read them.
      role: of the messages that give results in words; `user` where the chat template knows no
        `tool`.
      search: in symbols, `exact` finds the fact about a name, and `bm25` the best of all facts by
        BM25 (extra `tools`), which may be one that has the name as its object. In words it is BM25.
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
    faults = engine.checked(noise, failures, latency)
    if not 0 <= credit <= 1:
        raise ValueError(f"credit={credit} is a part of the reward, from 0 to 1")
    if malformed > 0:
        raise ValueError(f"malformed={malformed} is a penalty: give 0 or less")
    if not 0 <= masks <= 2 * hops or (masks and instructions):
        raise ValueError(
            f"masks={masks}, instructions={instructions}: mask up to {2 * hops} facts, two a hop, "
            "and in symbols alone"
        )
    if search not in ("exact", "bm25") or (search == "bm25" and regime != "hops"):
        raise ValueError(f"search={search!r}: choose exact, or bm25 with the regime hops")
    if regime not in REGIMES:
        raise ValueError(f"regime={regime!r}: choose one of {', '.join(REGIMES)}")
    if regime != "hops" and (masks or instructions):
        raise ValueError(
            f"regime={regime!r} with masks={masks}, instructions={instructions}: masks and words "
            "are for the regime hops alone; leave them out"
        )
    if regime != "hops" and not (ood_hops <= names and hops > (regime == "compare")):
        raise ValueError(
            f"regime={regime!r} with hops={hops}, ood_hops={ood_hops}, names={names}: need as many "
            "names as facts, and 2 facts to compare"
        )
    fewest = hops + (regime == "count")
    if synthesis and (masks or synthesis < fewest):
        raise ValueError(
            f"synthesis={synthesis} with masks={masks}: it composes questions, and needs {fewest} "
            "searches or more for one"
        )
    if instructions or search == "bm25":
        toolbox.need_bm25()

    letters = string.ascii_lowercase[: (ood_hops + 1) * names]
    numbers = NUMBERS[:ood_hops] if regime == "count" else ""
    stops = () if instructions else (*letters, *numbers)
    marks = {"hops": f"{hops}{ood_hops}", "count": f"#{numbers}", "compare": f">{NUMBERS}"}[regime]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        steps = ood_hops if split == "ood" else hops
        pool: Sequence[str] = _NAMES if instructions else letters

        def draw(stream: random.Random) -> tuple[Any, tuple[Fact, ...]]:
            if masks:
                facts = world(stream, steps, names, pool)
                return tuple(tuple(fact) for fact in stream.sample(facts, masks)), facts
            explored = synthesis if split == "train" else 0
            least = steps if split == "ood" else 1
            return questions.draw_question(
                regime, stream, steps, names, pool, searches=explored, least=least
            )

        def content(sample: tuple[Any, tuple[Fact, ...]]) -> str:
            question, facts = sample
            if regime != "hops":
                return repr((regime, sorted(question.about), sorted(facts)))
            return repr((question if masks else question.about[0], facts))

        stream = generate.rng("retrieval", split, seed, index)
        sample = generate.draw(draw, key=content, stream=stream, split=split)
        question, facts = sample
        plain = tuple(tuple(fact) for fact in facts)  # as a checkpoint can keep them
        posed = functools.partial(generate.user_problem, "retrieval", content(sample), facts=plain)
        if masks:
            text = "".join(f"{name}{NOTHING}" for _, name, _ in question)
            return posed(
                text, "".join(fact[2] for fact in question),
                needed=tuple(tuple(fact[1:]) for fact in question),
            )  # fmt: skip
        if regime != "hops":
            return posed(
                question.prompt, question.answer, needed=question.needed, calls=question.calls,
                searches=steps + (regime == "count"),
            )  # fmt: skip
        text = QUESTIONS[steps - 1].format(*question.about) if instructions else question.prompt
        chain = (*question.about, *(name for _, name in question.needed))
        return posed(text, question.answer, chain=chain)

    def begin(problem: Problem, seed: int) -> tuple[_Library, Opening]:
        facts = tuple(Fact(*fact) for fact in problem.metadata["facts"])
        needed, answers = needed_facts(problem)
        allowed = problem.metadata.get("searches", len(needed)) if searches is None else searches
        library = _Library(facts, frozenset(needed), answers, allowed, seed)
        messages = ({"role": "user", "content": problem.prompt},)
        offered = (_search(library),) if instructions and allowed else ()
        return library, Opening(messages, stops, tools=tuple(tool.schema for tool in offered))

    def right(library: _Library, query: str) -> list[Fact]:
        """What a search should find."""
        if instructions:
            sentences = {fact.sentence: fact for fact in library.facts}
            find = toolbox.ranked(list(sentences))
            return [sentences[sentence] for sentence in find(query, _PASSAGES)]
        if search == "bm25":  # which knows no words of one letter
            documents = {f"{2 * fact.subject} {2 * fact.object}": fact for fact in library.facts}
            best = toolbox.ranked(list(documents))(2 * query, 1)
            return [documents[document] for document in best]
        facts = questions.results(regime, library.facts, query, library.pages[query])
        library.pages[query] += 1
        return facts

    def look(library: _Library, query: str) -> list[Fact]:
        """What a search finds."""
        library.asked += 1
        facts = engine.search(
            faults, library.seed, library.asked, library.facts, lambda: right(library, query)
        )
        library.found.update(facts)
        return facts

    def _search(library: _Library) -> Tool:
        def run(query: str) -> str:
            """Finds facts.

            Args:
              query: words to look for.
            """
            facts = look(library, query)
            return "\n".join(fact.sentence for fact in facts) or "nothing found"

        return definition.tool(run, name="search")

    def earned(library: _Library) -> float:
        """The reward so far for facts that lead to the answer."""
        pairs = {(fact.subject, fact.object) for fact in library.found}
        return credit * len(library.needed & pairs) / len(library.needed)

    def judged(library: _Library, words: Sequence[str]) -> Reply:
        """Whether the last name among the words is the answer that is due."""
        valid_answers = {name for fact in library.facts for name in (fact.subject, fact.object)} | {
            *numbers
        }
        candidates = [word for word in words if word in valid_answers]
        right = candidates[-1:] == [library.answers[len(library.right)]]
        library.right.append(right)
        library.left, count = 0, len(library.answers)
        reward = (1 - credit) * right / count if candidates else malformed
        parts = {"correct": sum(library.right) / count}
        return Reply(
            reward=reward, parts=parts, done=len(library.right) == count,
            stop=() if instructions else stops,
        )  # fmt: skip

    def in_words(library: _Library, action: str) -> Reply:
        before = earned(library)
        outputs = definition.results([_search(library)], action) if library.left else []
        if not outputs:
            return judged(
                library, [word.capitalize() for word in re.findall(r"\w+", extract.spoken(action))]
            )
        library.left -= 1
        message = {"role": role, "content": definition.joined(outputs)}
        return Reply((message,), earned(library) - before, calls=len(outputs))

    def in_symbols(library: _Library, action: str) -> Reply:
        if not library.left or action.startswith("=") or action in tuple(numbers):
            return judged(library, [action.removeprefix("=")])
        before = earned(library)
        library.left -= 1
        try:
            pairs = [fact.subject + fact.object for fact in look(library, action)]
        except ValueError:
            pairs = []
        message = {"role": "user", "content": "".join(pairs) or NOTHING}
        return Reply((message,), earned(library) - before, stop=stops, calls=1)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        needed, answers = needed_facts(problem)
        allowed = problem.metadata.get("searches", len(needed)) if searches is None else searches
        calls = problem.metadata.get("calls", [subject for subject, _ in needed])[:allowed]
        if instructions:
            queries = [RELATIONS[i].format(name, "").strip(" .") for i, name in enumerate(calls)]
            return (*(write_call(Call("search", {"query": query})) for query in queries), *answers)
        first, *rest = answers
        return (*calls, "=" * (allowed > len(calls) and not numbers) + first, *rest)

    task = Task(
        name="retrieval",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII if instructions else f"{letters}{marks}={NOTHING}\n",
        description=__doc__,
        pure=not latency,
        turns=Environment(
            begin,
            in_words if instructions else in_symbols,
            roles=(role if instructions else "user",),
            gold=None if noise or failures or search == "bm25" else gold,
            tools=instructions,
            seconds=(lambda problem, action: latency * max(1, definition.count(action)))
            if latency
            else None,
        ),
    )
    return task


def needed_facts(problem: Problem) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Subject and object of the facts that lead to the answers of a problem, and the answers."""
    if "needed" in problem.metadata:
        needed = tuple((subject, object_) for subject, object_ in problem.metadata["needed"])
        return needed, tuple(problem.answer)
    chain = problem.metadata["chain"]
    return tuple(itertools.pairwise(chain)), (chain[-1],)
