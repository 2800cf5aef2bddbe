"""Several tasks as one: each problem has the domain it came from, whose task scores it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable
from typing import Any

from jaxrl.data import tasks
from jaxrl.data.sources import generate
from jaxrl.data.text import templates
from jaxrl.data.types import Problem, Score, Task


def task(parts: str) -> Task:
    """A mixture as one task, so that one pool and one config field carry it.

    `jaxrl.data.tasks.get("mixture", parts='{"easy": [1, "countdown", {"numbers": 3}], ...}')`: a
    train problem is drawn from one of the parts by their weights, and the problems of other splits
    take the parts in turn, so that an evaluation sees all of them alike. A problem's `domain` is
    the name given here.

    Args:
      parts: JSON: domain to [weight, task name, parameters] and, if need be, what is added to its
        problems' metadata.

    Raises:
      ValueError: no part, or weights that cannot be.
    """
    read = json.loads(parts)
    part_tasks = {name: _part(name, *rest) for name, (_, *rest) in read.items()}
    weights = {name: float(weight) for name, (weight, *_) in read.items()}
    if min(weights.values(), default=0) < 0 or not sum(weights.values()) > 0:
        raise ValueError(f"weights={weights} of a mixture: need >= 0, sum > 0")
    splits = tuple(
        s for s in ("train", "test", "ood") if all(s in t.splits for t in part_tasks.values())
    )
    if "train" not in splits:
        raise ValueError(f"tasks {list(part_tasks)} of a mixture must all have a train split")

    def problem(split: str, seed: int, index: int) -> Problem:
        joined.check_split(split)
        turn, place = divmod(index, len(part_tasks))
        name = list(part_tasks)[place]
        if split == "train":
            turn, stream = index, generate.rng("mixture", seed, index)
            (name,) = stream.choices(list(weights), list(weights.values()))
        size = part_tasks[name].sizes.get(split)
        return part_tasks[name].problem(split, seed, turn if size is None else turn % size)

    def reward(problem: Problem, completion: str) -> Score | Awaitable[Score]:
        return part_tasks[problem.domain].reward(problem, completion)

    golds = all(part.gold for part in part_tasks.values())
    alphabets = [part.alphabet for part in part_tasks.values()]
    joined = Task(
        name="mixture",
        problem=problem,
        reward=reward,
        gold=(lambda problem: part_tasks[problem.domain].gold(problem)) if golds else None,
        splits=splits,
        alphabet="".join(sorted(set("".join(alphabets)))) if all(alphabets) else None,
        parts=part_tasks,
        pure=all(part.pure for part in part_tasks.values()),
        sandboxed=any(part.sandboxed for part in part_tasks.values()),
        description="A mixture of other tasks.",
    )
    return joined


def _part(
    name: str, kind: str, params: dict[str, Any], metadata: dict[str, Any] | None = None
) -> Task:
    def marked(problem: Problem) -> Problem:
        added = {**problem.metadata, **(metadata or {})}
        return dataclasses.replace(problem, domain=name, metadata=added)

    return templates.wrap(tasks.get(kind, **params), marked)
