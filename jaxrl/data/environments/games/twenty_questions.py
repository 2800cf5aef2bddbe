"""Twenty questions: a simulated user thinks of a thing, and answers as long as it has patience."""

from __future__ import annotations

import dataclasses
import math
import random
import re

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Task

TRAITS: dict[str, tuple[str, ...]] = {
    "size": ("tiny", "small", "large", "huge"),
    "color": ("red", "green", "blue", "yellow", "white", "black"),
    "material": ("wooden", "metal", "glass", "paper", "stone"),
    "owner": ("old", "young", "rich", "poor"),
    "kind": ("box", "ball", "cup", "ring", "book", "bell"),
    "place": ("kitchen", "garden", "cellar", "attic"),
}
"""Hidden facts by name, and what they may be. No word belongs to two."""

RULES = (
    "I think of a thing. {facts}. Ask whether it has one of these, such as: is it {word}? To end, "
    "say all of it after GUESS, such as: GUESS {guess}. You may ask {questions} times."
)


@dataclasses.dataclass
class _User:
    """What the simulated user keeps in mind."""

    thing: dict[str, str]
    left: int
    """Questions that are left."""
    patience: int
    asked: dict[str, bool] = dataclasses.field(default_factory=dict)
    """Words that it has answered."""


def task(
    traits: int = 3,
    ood_traits: int | None = None,
    questions: int = 20,
    patience: int = 3,
) -> Task:
    """Things with hidden traits, which are found out by asking for one trait at a time.

    A question that was asked before, has no trait or has several costs patience; a user without
    any leaves.

    Args:
      traits: of a thing in train and test, from 2 to 5.
      ood_traits: of a thing in the ood split; None means one more than `traits`.
      questions: that may be asked.
      patience: of the user.
    """
    ood_traits = traits + 1 if ood_traits is None else ood_traits
    if not 2 <= traits < ood_traits <= len(TRAITS):
        raise ValueError(
            f"traits={traits}, ood_traits={ood_traits}: need 2 <= traits < ood_traits <= "
            f"{len(TRAITS)}"
        )
    if questions < 1 or patience < 1:
        raise ValueError(f"questions={questions}, patience={patience} must be positive")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        count = ood_traits if split == "ood" else traits

        def draw(stream: random.Random) -> dict[str, str]:
            return {name: stream.choice(TRAITS[name]) for name in list(TRAITS)[:count]}

        stream = generate.rng("twenty_questions", split, seed, index)
        thing = generate.draw(draw, key=str, stream=stream, split=split)
        facts = ". ".join(f"Its {name} is {' or '.join(TRAITS[name])}" for name in thing)
        first = [TRAITS[name][0] for name in thing]
        prompt = RULES.format(
            facts=facts, word=first[0], guess=" ".join(first), questions=questions
        )
        return generate.user_problem("twenty_questions", str(thing), prompt, thing)

    def begin(problem: Problem, seed: int) -> tuple[_User, Opening]:
        user = _User(dict(problem.answer), questions, patience)
        return user, Opening(({"role": "user", "content": problem.prompt},))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        return tuple(_halving(problem.answer))

    task = Task(
        name="twenty_questions",
        problem=problem,
        reward=unscored,
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def step(user: _User, action: str) -> Reply:
    """A question, or the guess that ends the episode and earns 1 where it is right."""
    before, guess, after = extract.spoken(action).partition("GUESS")
    words = re.findall(r"[a-z]+", (after if guess else before).lower())
    if guess:
        guessed_traits = {
            word for word in words if any(word in values for values in TRAITS.values())
        }
        right = guessed_traits == set(user.thing.values())
        return Reply(reward=float(right), parts=_parts(user, right), done=True)
    meant = [w for w in dict.fromkeys(words) if any(w in TRAITS[name] for name in user.thing)]
    user.left -= 1
    answer = _answer(user, meant)
    if user.patience <= 0 or user.left < 0:
        return Reply(reward=0.0, parts=_parts(user, False), done=True)
    return Reply(({"role": "user", "content": answer},), 0.0, _parts(user, False))


def _answer(user: _User, meant: list[str]) -> str:
    if len(meant) != 1:
        user.patience -= 1
        return "one at a time, please" if meant else "what do you mean?"
    (word,) = meant
    if word in user.asked:
        user.patience -= 1
        return f"I told you: {'yes' if user.asked[word] else 'no'}"
    user.asked[word] = word in user.thing.values()
    return "yes" if user.asked[word] else "no"


def _parts(user: _User, right: bool) -> dict[str, float]:
    known_share = math.fsum(user.asked.values()) / len(user.thing)
    return {"guessed": float(right), "known": known_share, "patience": float(user.patience)}


def _halving(thing: dict[str, str]) -> list[str]:
    """Questions one trait after the other, and the guess."""
    questions = []
    for name, value in thing.items():
        for word in TRAITS[name][:-1]:
            questions.append(f"is it {word}?")
            if word == value:
                break
    return [*questions, "GUESS " + " ".join(thing.values())]
