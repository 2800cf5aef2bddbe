"""Tasks whose scorers and environments take time but no processor; for `overlap`, `predicted`."""

import string
import time

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Score, Task

ALPHABET = string.ascii_letters + string.digits + "\n"
"""So large that a policy without training seldom ends an answer before its budget."""


def _problem(split: str, seed: int, index: int, longest: int, sigma: float) -> Problem:
    """One whose answers may have so many tokens: lognormal, with a median of 16."""
    drawn = round(16 * generate.rng(split, seed, index).lognormvariate(0.0, sigma))
    budget = max(1, min(longest, drawn))
    key = f"{split}/{seed}/{index}"
    return generate.user_problem(
        "sleeping", key, f"{index % 1000:03d}", None, max_new_tokens=budget
    )


def scored(seconds: float = 0.0, longest: int = 256, sigma: float = 1.0) -> Task:
    """A reward that takes so many seconds: the share of digits."""

    def reward(problem: Problem, completion: str) -> Score:
        time.sleep(seconds)
        return Score(_share(completion))

    return Task(
        "sleeping",
        lambda split, seed, index: _problem(split, seed, index, longest, sigma),
        reward,
        alphabet=ALPHABET,
        pure=not seconds,
    )


def played(seconds: float = 0.0, turns: int = 3, longest: int = 256, sigma: float = 1.0) -> Task:
    """An environment whose replies take time: lognormal, with a median of so many seconds."""

    def begin(problem: Problem, seed: int) -> tuple[list[str], Opening]:
        return [], Opening(({"role": "user", "content": problem.prompt},))

    def step(said: list[str], action: str) -> Reply:
        time.sleep(seconds * generate.rng("reply", len(said), action).lognormvariate(0.0, sigma))
        said.append(action)
        message = {"role": "user", "content": str(len(said) % 10)}
        return Reply((message,), _share(action), done=len(said) == turns)

    return Task(
        "sleeping",
        lambda split, seed, index: _problem(split, seed, index, longest, sigma),
        unscored,
        alphabet=ALPHABET,
        pure=not seconds,
        turns=Environment(begin, step),
    )


def _share(text: str) -> float:
    return sum(c.isdigit() for c in text) / max(1, len(text))
