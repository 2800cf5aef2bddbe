"""Questions about a made-up world, whose facts are stated before the answer and checked.

After Ren et al. 2025, "KnowRL: Exploring Knowledgeable Reinforcement Learning for Factuality".
"""

from __future__ import annotations

import random
from typing import NamedTuple

from jaxrl.data.rewards import schema
from jaxrl.data.rewards.judged import claims
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

_SYLLABLES = tuple(c + v for c in "bdfklmnrst" for v in "aeiou")
_KINDS = {
    "land": ("Which land does {} live in?", "{} lies in {}"),
    "river": ("Which river does {} live by?", "{} lies by the {}"),
    "dish": ("Which dish is {} fond of?", "{} is known for {}"),
}
"""Name to question, of a person, and fact, of a town."""
_REFUSALS = {"unknown", "i do not know", "i don't know"}


class World(NamedTuple):
    """What is true."""

    homes: dict[str, str]
    """Person to town."""
    towns: dict[str, dict[str, str]]
    """Town to what it has of each kind."""

    def facts(self) -> frozenset[str]:
        """All that is true, as claims."""
        lives = (f"{person} lives in {town}" for person, town in self.homes.items())
        about = (
            _KINDS[kind][1].format(town, value)
            for town, has in self.towns.items()
            for kind, value in has.items()
        )
        return frozenset(claim for text in (*lives, *about) for claim in claims.claims(text))


def task(
    people: int = 60,
    towns: int = 12,
    facts: bool = True,
    slips: float = 0.0,
    refusals: float = 0.0,
    template: str = "{question}\n",
) -> Task:
    """Where people live, and what is there: a fact on the person, one on the town, the answer.

    A completion is `<think>...</think><answer>...</answer>`. The facts are not in the prompt. An
    answer of "unknown" is a refusal. The reward is a third of `claims.factual`.

    Args:
      people: of the world; each is asked about in three ways.
      towns: that they live in.
      facts: whether the facts stated before a wrong answer earn something.
      slips: share of the facts in solutions to imitate that are wrong.
      refusals: share of these solutions that refuse to answer.
      template: prompt with `{question}` in it.
    """
    if people < 20 or not 2 <= towns <= people:
        raise ValueError(f"people={people}, towns={towns}: need 20 people, and 2 to {people} towns")
    if not 0 <= slips < 1 or not 0 <= refusals < 1:
        raise ValueError(f"slips={slips}, refusals={refusals}: must be 0 or more and below 1")
    extract.fill(template, "")
    world = _world(people, towns)
    world_facts = world.facts()
    shaped = schema.think_answer()

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        person, kind = generate.draw(
            lambda stream: (stream.choice(list(world.homes)), stream.choice(list(_KINDS))),
            key=str,
            stream=generate.rng("known_facts", split, seed, index),
            split=split,
        )
        prompt = extract.fill(template, _KINDS[kind][0].format(person))
        answer = world.towns[world.homes[person]][kind]
        return generate.user_problem(
            "known_facts", f"{person}{kind}", prompt, answer, person=person, kind=kind
        )

    def gold(problem: Problem) -> str:
        stream = generate.rng("facts", problem.id)
        person, kind = problem.metadata["person"], problem.metadata["kind"]
        town, distractor = world.homes[person], stream.choice(list(world.towns))
        town = distractor if stream.random() < slips else town
        value, distractor = (
            world.towns[town][kind],
            world.towns[stream.choice(list(world.towns))][kind],
        )
        value = distractor if stream.random() < slips else value
        thought = f"{person} lives in {town}. {_KINDS[kind][1].format(town, value)}."
        answer = "unknown" if stream.random() < refusals else value
        return f"<think>{thought}</think><answer>{answer}</answer>"

    def reward(problem: Problem, completion: str) -> Score:
        answer = (extract.answer_tag(completion) or "").lower()
        correct = float(answer == problem.answer.lower())
        refused = float(answer in _REFUSALS)
        formatted = shaped(problem, completion).value
        support = claims.supported(claims.claims(claims.thought(completion)), world_facts)
        value = claims.factual(correct, refused, support if facts else 0.0, formatted)
        parts = {
            "correct": correct,
            "refused": refused,
            "supported": support,
            "format": formatted,
        }
        return Score(value / 3, parts)

    task = Task(
        name="known_facts",
        problem=problem,
        reward=reward,
        gold=gold,
        splits=("train", "test"),
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def _world(people: int, towns: int) -> World:
    """The same in every process."""
    stream = random.Random(f"world/{people}/{towns}")
    pairs = [a + b for a in _SYLLABLES for b in _SYLLABLES]
    names = [name.capitalize() for name in stream.sample(pairs, people + 4 * towns)]
    persons, places, rest = names[:people], names[people : people + towns], names[people + towns :]
    values = [rest[i : i + len(_KINDS)] for i in range(0, len(rest), len(_KINDS))]
    homes = {person: places[i % towns] for i, person in enumerate(persons)}
    return World(
        homes,
        {
            place: dict(zip(_KINDS, town_values, strict=True))
            for place, town_values in zip(places, values, strict=True)
        },
    )
