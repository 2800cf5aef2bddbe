"""Mixtures of tasks: weights that may change with the step, and a position that is one number.

Which task serves draw n is a pure function of (seed, n, weights at n's step), and each task's own
index counts how often it was chosen before. The state is the number of batches and those counts,
so that a restored stream goes on exactly, on any number of hosts.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any

from data import generate, tasks
from data.types import Problem, Score, Task

Weights = Mapping[str, float]
Schedule = Sequence[tuple[int, Weights]]
"""(first step, weights) in order of steps: each entry holds until the next."""


def weights_at(schedule: Schedule, step: int) -> Weights:
    """The weights in force at a step, counted from 0."""
    return schedule[bisect.bisect_right([first for first, _ in schedule], step) - 1][1]


class Stream:
    """Batches of problems from several tasks, without end; `get_state` and `set_state` as in grain.

    Finite splits are shuffled anew each epoch, as in `data.stream`.
    """

    def __init__(
        self,
        sources: Mapping[str, Task],
        schedule: Schedule | Weights,
        *,
        split: str = "train",
        seed: int,
        batch_size: int,
        host_index: int = 0,
        host_count: int = 1,
    ) -> None:
        """See `mix` for the arguments."""
        self._tasks = dict(sources)
        self._schedule = [(0, schedule)] if isinstance(schedule, Mapping) else list(schedule)
        _check(self._tasks, self._schedule, split)
        if batch_size < 1 or batch_size % host_count or not 0 <= host_index < host_count:
            raise ValueError(
                f"batch_size={batch_size} must be a positive multiple of host_count={host_count}, "
                f"and host_index={host_index} below it"
            )
        self._split, self._seed, self._batch = split, seed, batch_size
        self._host, self._hosts = host_index, host_count
        self._step = 0
        self._counts = dict.fromkeys(self._tasks, 0)
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def __iter__(self) -> Iterator[list[Problem]]:
        return self

    def __next__(self) -> list[Problem]:
        weights = weights_at(self._schedule, self._step)
        names = list(weights)
        ladder = list(itertools.accumulate(weights.values()))
        batch = []
        for place in range(self._batch):
            stream = generate.rng("mixture", self._seed, self._step * self._batch + place)
            at = bisect.bisect_right(ladder, stream.random() * ladder[-1])
            name = names[min(at, len(names) - 1)]
            count = self._counts[name]
            self._counts[name] += 1
            if place % self._hosts == self._host:
                batch.append(self._problem(name, count))
        self._step += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """A small JSON-able dict; the same on every host."""
        return {"step": self._step, "counts": dict(self._counts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on after `state`.

        Raises:
          ValueError: a state of other tasks.
        """
        if set(state["counts"]) != set(self._counts):
            raise ValueError(
                f"the state is of tasks {sorted(state['counts'])}, this stream of "
                f"{sorted(self._counts)}; restore it with the same mixture"
            )
        self._step, self._counts = state["step"], dict(state["counts"])

    def _problem(self, name: str, count: int) -> Problem:
        task = self._tasks[name]
        size = task.sizes.get(self._split)
        index = count
        if size is not None:
            epoch, offset = divmod(count, size)
            if self._orders.get(name, (None,))[0] != epoch:
                order = list(range(size))
                generate.rng("epoch", self._seed, name, epoch).shuffle(order)
                self._orders[name] = (epoch, order)
            index = self._orders[name][1][offset]
        problem = task.problem(self._split, self._seed, index)
        return dataclasses.replace(problem, domain=name)


def mix(sources: Mapping[str, Task], schedule: Schedule | Weights, **where: Any) -> Stream:
    """A stream over a mixture.

    Args:
      sources: domain to task. A problem's `domain` is the name given here.
      schedule: weights by name, or (first step, weights) pairs; a task left out, or with weight 0,
        is not drawn.
      **where: `split`, `seed`, `batch_size`, `host_index`, `host_count`, as in
        `data.stream.prompts`.

    Raises:
      ValueError: unknown names, weights that cannot be, or a schedule out of order.
    """
    return Stream(sources, schedule, **where)


def task(parts: str) -> Task:
    """A mixture with fixed weights as one task, so that one pool and one config field carry it.

    `data.tasks.get("mixture", parts='{"easy": [1, "countdown", {"numbers": 3}], ...}')`: problem i
    is drawn from one of the parts, and scored by that part's reward.

    Args:
      parts: JSON: domain to [weight, task name, parameters].
    """
    read: dict[str, tuple[float, str, dict[str, Any]]] = json.loads(parts)
    made = {name: tasks.get(kind, **params) for name, (_, kind, params) in read.items()}
    weights = {name: float(weight) for name, (weight, _, _) in read.items()}
    splits = tuple(s for s in ("train", "test", "ood") if all(s in t.splits for t in made.values()))
    _check(made, [(0, weights)], splits[0] if splits else "train")

    def problem(split: str, seed: int, index: int) -> Problem:
        joined.check_split(split)
        stream = generate.rng("mixture", split, seed, index)
        (name,) = stream.choices(list(weights), list(weights.values()))
        size = made[name].sizes.get(split)
        inner = index if size is None else stream.randrange(size)
        return dataclasses.replace(made[name].problem(split, seed, inner), domain=name)

    def reward(problem: Problem, completion: str) -> Score | Awaitable[Score]:
        return made[problem.domain].reward(problem, completion)

    golds = all(each.gold for each in made.values())
    alphabets = [each.alphabet for each in made.values()]
    joined = Task(
        name="mixture",
        problem=problem,
        reward=reward,
        gold=(lambda problem: made[problem.domain].gold(problem)) if golds else None,
        splits=splits,
        alphabet="".join(sorted(set("".join(alphabets)))) if all(alphabets) else None,
        description="A mixture of other tasks, with fixed weights.",
    )
    return joined


def _check(sources: Mapping[str, Task], schedule: Schedule, split: str) -> None:
    if not schedule or schedule[0][0] != 0:
        raise ValueError(f"schedule={schedule!r}: its first entry must start at step 0")
    steps = [first for first, _ in schedule]
    if steps != sorted(set(steps)):
        raise ValueError(f"schedule steps {steps} must rise")
    for first, weights in schedule:
        unknown = set(weights) - set(sources)
        if unknown:
            raise ValueError(f"weights of {sorted(unknown)} at step {first}: no such task")
        if min(weights.values(), default=0) < 0 or not sum(weights.values()) > 0:
            raise ValueError(f"weights={dict(weights)} at step {first}: need >= 0, sum > 0")
    for each in sources.values():
        each.check_split(split)
