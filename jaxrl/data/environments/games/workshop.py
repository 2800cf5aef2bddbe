"""A workshop where things are made of things: a goal to make, and tasks that exploration finds.

What each tool needs is the same in all problems, and nothing says it. A world like this comes
without tasks. `found` makes them: it explores, abstracts each thing that was made into a goal with
its steps, plays the steps again to check them, and keeps each goal once. The world may also be
replaced by a model of it, which predicts what tools do from logged experience.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import generate
from jaxrl.data.types import Problem, Task

NEEDS = {
    "e": "ab", "f": "bc", "g": "cd", "h": "ad",
    "i": "ef", "j": "fg", "k": "eh",
    "l": "gi", "m": "dj", "n": "ak",
}  # fmt: skip
"""What each tool needs; it makes the thing of its own name, and uses nothing up."""
RAW, IDLE = "abcd", "xyz"
"""Things that cannot be made: those that tools need, and those that none does."""
EXPLORERS = ("curious", "random", "none")

_HELD_OUT = 0.25  # of the goals, which are few


class Goal(NamedTuple):
    """A task of the workshop."""

    start: str
    """Things that are there from the start, sorted."""
    thing: str
    """To be made."""
    steps: tuple[str, ...]
    """Tools that make it, in order."""

    @property
    def prompt(self) -> str:
        """What the policy reads."""
        return f"{self.start}>{self.thing}"


class Tried(NamedTuple):
    """A step of exploration."""

    start: str
    """Of the episode."""
    tools: tuple[str, ...]
    """Used so far, with or without success."""
    things: frozenset[str] = frozenset()
    """That were there before the step."""
    made: bool = True
    """Whether the last tool made its thing."""


@dataclasses.dataclass
class _Bench:
    things: set[str]
    goal: str
    left: int
    """Turns that are left."""
    model: Callable[[frozenset[str], str], bool] | None
    """What takes the place of the world: (things, tool) -> whether it makes its thing."""
    used: int = 0


def task(
    explorer: str = "none",
    steps: int = 400,
    horizon: int = 12,
    turns: int = 8,
    experience: int = 0,
    neighbours: int = 3,
) -> Task:
    """Things to make, in symbols.

    `abx>e` asks for e where a, b and x are there. A turn is the letter of a tool. It is answered
    with + if the tool has made its thing, and with - if something that it needs is missing or the
    thing is there already. Making the goal earns 1 and ends the episode. Held-out goals come from
    the whole world; the ood split has those alone that take three tools or more.

    Args:
      explorer: where the goals of the train split come from: curious or random exploration, or
        none: all that can be made. Each seed of a run explores anew.
      steps: of exploration, in all.
      horizon: steps of an episode of exploration.
      turns: the most that an episode may have.
      experience: steps of curious exploration that a model of the world is made of, in which the
        train split is then played; each seed of a run has its own. 0: the world itself.
      neighbours: logged steps with the same tool that the model asks, those whose things are most
        alike (by Jaccard's index); the majority decides.
    """
    if explorer not in EXPLORERS:
        raise ValueError(f"explorer={explorer!r}: choose one of {', '.join(EXPLORERS)}")
    if min(steps, horizon) < 1:
        raise ValueError(f"steps={steps}, horizon={horizon}: must be positive")
    if experience < 0 or neighbours < 1:
        raise ValueError(
            f"experience={experience}, neighbours={neighbours}: need 0 or more, and 1 or more"
        )
    if turns < 5:
        raise ValueError(f"turns={turns}: some goals take 5 tools; allow 5 or more")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        goals = world()
        if split == "train" and explorer != "none":
            goals = explored_goals(seed, steps, horizon, curious=explorer == "curious")
        elif split == "ood":
            goals = tuple(goal for goal in goals if len(goal.steps) >= 3)
        stream = generate.rng("workshop", split, seed, index)
        goal = generate.draw(
            lambda stream: stream.choice(goals),
            key=lambda goal: goal.prompt,
            stream=stream,
            split=split,
            share=_HELD_OUT,
        )
        modelled = experience if split == "train" else 0
        return generate.user_problem(
            "workshop", goal.prompt, goal.prompt, goal.thing,
            start=goal.start, steps=goal.steps, seed=seed, experience=modelled,
        )  # fmt: skip

    def begin(problem: Problem, seed: int) -> tuple[_Bench, Opening]:
        metadata, model = problem.metadata, None
        if metadata["experience"]:
            model = modelled(metadata["seed"], metadata["experience"], horizon, neighbours)
        bench = _Bench(set(metadata["start"]), problem.answer, turns, model)
        return bench, Opening(({"role": "user", "content": problem.prompt},))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        return problem.metadata["steps"]

    task = Task(
        name="workshop",
        problem=problem,
        reward=unscored,
        alphabet=f"{''.join(NEEDS)}{RAW}{IDLE}>+-\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def step(bench: _Bench, action: str) -> Reply:
    """One tool."""
    bench.left -= 1
    bench.used += 1
    success = use(bench.things, action, bench.model)
    reached = success and action == bench.goal
    parts = {"made": float(reached), "used": float(bench.used)}
    if reached or not bench.left:
        return Reply(reward=float(reached), parts=parts, done=True)
    return Reply(({"role": "user", "content": "-+"[success]},), 0.0, parts)


def works(things: frozenset[str], tool: str) -> bool:
    """Whether a tool makes its thing in the world itself."""
    return tool in NEEDS and tool not in things and things.issuperset(NEEDS[tool])


def use(
    things: set[str], tool: str, model: Callable[[frozenset[str], str], bool] | None = None
) -> bool:
    """Whether a tool makes its thing, which is then added.

    Args:
      things: that are there.
      tool: that is used.
      model: in place of `works`.
    """
    success = (model or works)(frozenset(things), tool)
    if success:
        things.add(tool)
    return success


def plan(start: str, thing: str) -> tuple[str, ...] | None:
    """The fewest tools that make a thing, in order; None where it cannot be made.

    Args:
      start: things that are there.
      thing: to be made.
    """
    steps: list[str] = []

    def reach(target: str) -> bool:
        if target in start or target in steps:
            return True
        if target not in NEEDS or not all(map(reach, NEEDS[target])):
            return False
        steps.append(target)
        return True

    return tuple(steps) if reach(thing) else None


@functools.cache
def world() -> tuple[Goal, ...]:
    """All goals that can be reached, from all starts."""
    goals = []
    for start in starts():
        ways = {thing: plan(start, thing) for thing in NEEDS}
        goals += [Goal(start, thing, way) for thing, way in ways.items() if way]
    return tuple(goals)


@functools.cache
def starts() -> tuple[str, ...]:
    """Two raw things or more, and any of the idle ones."""
    raw = (set(c) for n in (2, 3, 4) for c in itertools.combinations(RAW, n))
    idle = [set(c) for n in range(4) for c in itertools.combinations(IDLE, n)]
    return tuple(
        "".join(sorted(raw_set | idle_set)) for raw_set, idle_set in itertools.product(raw, idle)
    )


@functools.lru_cache(maxsize=8)
def explored_goals(seed: int, steps: int, horizon: int, curious: bool) -> tuple[Goal, ...]:
    """The goals that exploration leads to, without those that are held out.

    Args:
      seed: of the exploration.
      steps: of it, in all.
      horizon: steps of an episode.
      curious: choose tools by `novel`; else at random.

    Raises:
      ValueError: exploration has found nothing to train on.
    """
    stream = generate.rng("workshop", "exploration", seed)
    trail = explore(stream, steps, horizon, novel if curious else _any)
    goals = checked([abstracted(step) for step in trail if step.made])
    train_goals = tuple(goal for goal in goals if not generate.held_out(goal.prompt, _HELD_OUT))
    if not train_goals:
        raise ValueError(f"steps={steps}: exploration has made nothing; raise it")
    return train_goals


Counts = collections.Counter[tuple[frozenset[str], str]]
"""How often each tool was used in each state; under the empty state, how often it worked."""


def explore(
    stream: random.Random,
    steps: int,
    horizon: int,
    choose: Callable[[random.Random, frozenset[str], Counts], str],
) -> list[Tried]:
    """Every step of episodes of exploration.

    Args:
      stream: of chances.
      steps: in all.
      horizon: steps of an episode, which begins at any of `starts`.
      choose: (chances, things that are there, counts) -> a tool.
    """
    counts: Counts = collections.Counter()
    out = []
    for first in range(0, steps, horizon):
        start = stream.choice(starts())
        things, tools = set(start), []
        for _ in range(min(horizon, steps - first)):
            state = frozenset(things)
            tool = choose(stream, state, counts)
            counts[state, tool] += 1
            tools.append(tool)
            success = use(things, tool)
            counts[frozenset(), tool] += success
            out.append(Tried(start, tuple(tools), state, success))
    return out


def novel(stream: random.Random, state: frozenset[str], counts: Counts) -> str:
    """The tool that was used least in this state; among such, one that has worked most often.

    Args:
      stream: breaks ties.
      state: things that are there.
      counts: of tools by state; those of the empty state are of successes.
    """
    rank = {t: (counts[state, t], -counts[frozenset(), t]) for t in NEEDS if t not in state}
    if not rank:
        return _any(stream, state, counts)
    least = min(rank.values())
    return stream.choice([tool for tool, tool_rank in rank.items() if tool_rank == least])


def _any(stream: random.Random, state: frozenset[str], counts: Counts) -> str:
    return stream.choice(list(NEEDS))


def abstracted(step: Tried) -> Goal:
    """The goal that a step of exploration has reached, without the tools that it did not need."""
    things, worked = set(step.start), []
    for tool in step.tools:
        if use(things, tool):
            worked.append(tool)
    thing, needed = step.tools[-1], {step.tools[-1]}
    for tool in reversed(worked):
        if tool in needed:
            needed |= set(NEEDS[tool])
    return Goal(step.start, thing, tuple(tool for tool in worked if tool in needed))


def checked(goals: Sequence[Goal]) -> list[Goal]:
    """Goals whose steps, played again, reach them; each prompt once, in the order of first sight.

    Args:
      goals: as `abstracted`.
    """
    goals_by_prompt: dict[str, Goal] = {}
    for goal in goals:
        things = set(goal.start)
        if all([use(things, tool) for tool in goal.steps]) and goal.thing in things:
            goals_by_prompt.setdefault(goal.prompt, goal)
    return list(goals_by_prompt.values())


@functools.lru_cache(maxsize=8)
def modelled(
    seed: int, steps: int, horizon: int, neighbours: int
) -> Callable[[frozenset[str], str], bool]:
    """A model of the world, made of logged experience.

    Args:
      seed: of the exploration that is logged.
      steps: of it, in all.
      horizon: steps of an episode.
      neighbours: see `predicted`.

    Returns:
      (things, tool) -> whether the tool makes its thing. States in which the thing is there already
      are compared with such alone.
    """
    stream = generate.rng("workshop", "experience", seed)
    logs = collections.defaultdict(list)
    for step in explore(stream, steps, horizon, novel):
        tool = step.tools[-1]
        logs[tool, tool in step.things].append((step.things, step.made))

    @functools.cache
    def model(things: frozenset[str], tool: str) -> bool:
        return predicted(logs[tool, tool in things], things, neighbours)

    return model


def predicted(
    log: Sequence[tuple[frozenset[str], bool]], things: frozenset[str], neighbours: int
) -> bool:
    """Whether a tool made its thing in more than half of the logged states that are most alike.

    Args:
      log: things that were there and whether the tool made its thing, in order of time.
      things: that are there now.
      neighbours: how many states to ask; of equally alike ones, the first.
    """

    def alike(step: tuple[frozenset[str], bool]) -> float:
        return len(step[0] & things) / max(len(step[0] | things), 1)

    nearest = sorted(log, key=alike, reverse=True)[:neighbours]
    return 2 * sum(success for _, success in nearest) > len(nearest)
