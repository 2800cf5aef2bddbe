"""Searches planned for a frozen model that answers, in a small world of made-up facts.

The facts are those of `retrieval`. The policy only searches; when it hands over, a program in the
place of a frozen model answers from what was found and from what it knows itself.
"""

from __future__ import annotations

import dataclasses
import random
import string
from collections.abc import Sequence

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.environments.search.facts import Fact, path, world
from jaxrl.data.environments.search.retrieval import NOTHING
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

_HAND_OVER = "="


@dataclasses.dataclass
class _Plan:
    facts: tuple[Fact, ...]
    chain: tuple[str, ...]
    """The name in the question, and those that follow from it, to the answer."""
    known: frozenset[str]
    """Names about which the frozen model knows the fact."""
    seen: set[str]
    """Names in the question and in what was found."""
    found: set[Fact] = dataclasses.field(default_factory=set)
    asked: list[str] = dataclasses.field(default_factory=list)
    sensible: int = 0
    """Searches for a name that was seen, and not asked for before."""


def task(
    hops: int = 2,
    ood_hops: int | None = None,
    names: int = 4,
    searches: int = 4,
    famous: float = 0.5,
    cost: float = 0.1,
    process: float = 0.2,
    frozen: bool = True,
) -> Task:
    """Questions of several hops that a frozen model answers, all in symbols.

    `2a` asks for what is two facts away from `a`. A turn is one letter, a name to search for; it
    finds `ab`: `b` is one fact away from `a`. `=` hands over: the frozen model follows the facts
    that were found and those that it knows, and answers with the name where it comes to a stop. It
    knows the facts about the first letters of the alphabet.

    The reward of a plan is `gain + process * sensible + cost * (1 - T / searches)`: `gain`, whether
    the frozen model is right less whether it is right without a plan; `sensible`, the share of the
    searches that are for a name that was seen and not yet searched for (1 without a search); T, the
    searches. A turn of another form earns -1, and so does a search more than allowed.

    Args:
      hops: facts between question and answer, in train and test problems; 1 to 3.
      ood_hops: of ood problems, to 4; None means one more than `hops`.
      names: of each kind; a world has a fact about each name but those of the last kind.
      searches: that an episode may have.
      famous: share of the letters about which the frozen model knows the facts.
      cost: weight of the searches that were saved, alpha.
      process: weight of the searches' sense.
      frozen: whether the frozen model answers. Without it the policy does, with `=` and a letter,
        and knows what it has found alone; the gain is still over the frozen model without a plan.
    """
    ood_hops = hops + 1 if ood_hops is None else ood_hops
    if not 1 <= hops < ood_hops <= 4:
        raise ValueError(f"hops={hops}, ood_hops={ood_hops}: need 1 <= hops < ood_hops <= 4")
    if not 2 <= names <= 5:
        raise ValueError(f"names={names}: a kind has 2 to 5, so that letters suffice")
    if searches < 1:
        raise ValueError(f"searches={searches}: allow one or more")
    if not 0 <= famous <= 1:
        raise ValueError(f"famous={famous} is a share, from 0 to 1")
    for field, weight in (("cost", cost), ("process", process)):
        if weight < 0:
            raise ValueError(f"{field}={weight} is a weight: give 0 or more")

    letters = string.ascii_lowercase[: (ood_hops + 1) * names]
    known_names = frozenset(letters[: round(famous * len(letters))])
    stops = (*letters, _HAND_OVER) if frozen else tuple(letters)

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        steps = ood_hops if split == "ood" else hops

        def draw(stream: random.Random) -> tuple[str, tuple[Fact, ...]]:
            facts = world(stream, steps, names, letters)
            return stream.choice([fact.subject for fact in facts if not fact.relation]), facts

        stream = generate.rng("planning", split, seed, index)
        subject, facts = generate.draw(draw, key=repr, stream=stream, split=split)
        chain = tuple(path(facts, subject))
        plain = tuple(tuple(fact) for fact in facts)
        key = repr((subject, facts))
        return generate.user_problem(
            "planning", key, f"{steps}{subject}", chain[-1], facts=plain, chain=chain
        )

    def begin(problem: Problem, seed: int) -> tuple[_Plan, Opening]:
        facts = tuple(Fact(*fact) for fact in problem.metadata["facts"])
        chain = problem.metadata["chain"]
        plan = _Plan(facts, chain, known_names, {chain[0]})
        return plan, Opening(({"role": "user", "content": problem.prompt},), stops)

    def step(plan: _Plan, action: str) -> Reply:
        if action.startswith(_HAND_OVER) and (frozen or len(action) > 1):
            answer = answered(plan.chain[0], plan.facts, plan.known, plan.found)
            return ended(plan, answer if frozen else action.removeprefix(_HAND_OVER))
        if len(action) != 1 or action not in letters or len(plan.asked) == searches:
            return Reply(reward=-1.0, parts=parts(plan, 0.0), done=True)
        plan.sensible += action in plan.seen and action not in plan.asked
        plan.asked.append(action)
        facts = [fact for fact in plan.facts if fact.subject == action]
        plan.found.update(facts)
        plan.seen.update(fact.object for fact in facts)
        content = "".join(fact.subject + fact.object for fact in facts) or NOTHING
        return Reply(({"role": "user", "content": content},), stop=stops, calls=1)

    def ended(plan: _Plan, answer: str) -> Reply:
        right = float(answer == plan.chain[-1])
        alone = answered(plan.chain[0], plan.facts, plan.known, ())
        gain = right - float(alone == plan.chain[-1])
        count = len(plan.asked)
        sense = plan.sensible / count if count else 1.0
        reward = gain + process * sense + cost * (1 - count / searches)
        return Reply(reward=reward, parts=parts(plan, right), done=True)

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        chain = problem.metadata["chain"]
        return (*chain[:-1], _HAND_OVER if frozen else _HAND_OVER + chain[-1])

    task = Task(
        name="planning",
        problem=problem,
        reward=unscored,
        alphabet=f"{letters}{hops}{ood_hops}{_HAND_OVER}{NOTHING}\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold if searches >= ood_hops else None),
    )
    return task


def parts(plan: _Plan, right: float) -> dict[str, float]:
    """The figures of a plan."""
    return {"correct": right, "searches": float(len(plan.asked))}


def answered(
    subject: str,
    facts: Sequence[Fact],
    known_names: frozenset[str],
    found_facts: Sequence[Fact] | set[Fact],
) -> str:
    """Where a model comes to a stop that follows facts from a name.

    Args:
      subject: the name.
      facts: all that there are.
      known_names: names about which the model knows the fact.
      found_facts: facts that it was given.
    """
    usable = [fact for fact in facts if fact.subject in known_names or fact in found_facts]
    return list(path(usable, subject))[-1]
