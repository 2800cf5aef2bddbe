"""Partial rollouts: more groups under way than a step trains on, so that none waits for all.

A step samples until it has as many whole groups as it needs. What is unfinished by then goes on in
the next step under the next policy, every token with the log-probability and version that it was
sampled under (Kimi k1.5, 2025; "APRIL: Active Partial Rollouts in Reinforcement Learning", 2025).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import jax

from data.scoring import Pool
from data.types import Problem, Score
from jaxrl import rollout, sampler
from jaxrl.config import Config
from jaxrl.metrics import Timer
from jaxrl.policy import Policy
from jaxrl.requests import resume
from jaxrl.rollout import Experience, Row
from jaxrl.sampler import Setup, Work
from jaxrl.types import Completion, Params, Request


@dataclasses.dataclass
class Group:
    """A problem whose completions are under way."""

    problem: Problem
    requests: list[Request]
    """Of each completion; where it has begun, it goes on from there."""
    rows: list[Row | None]
    """What has ended."""

    @property
    def whole(self) -> bool:
        """Whether all have ended."""
        return None not in self.rows


@dataclasses.dataclass
class Flight:
    """All groups under way, oldest first. Must pickle: it is part of a checkpoint."""

    groups: list[Group]
    waiting: list[Problem]
    """Drawn, but not begun."""
    begun: int
    """Groups ever begun; it names their requests."""


def collect(
    policy: Policy,
    params: Params,
    draw: Callable[[], list[Problem]],
    flight: Flight,
    pool: Pool,
    config: Config,
    *,
    key: jax.Array,
    version: int,
    timer: Timer,
) -> Experience:
    """Sample until `rollout.prompts` groups are whole; they leave the flight, oldest first.

    Args:
      policy, params, pool, key, version, timer: see `rollout.collect`.
      draw: more problems.
      flight: changed in place.
      config: of the run.
    """
    settings = config.rollout
    size = settings.group_size
    while len(flight.groups) < round(settings.prompts * settings.in_flight):
        flight.waiting += [] if flight.waiting else draw()
        problem = flight.waiting.pop(0)
        requests = rollout.requests(policy, [problem], settings, flight.begun * size)
        flight.groups.append(Group(problem, requests, [None] * size))
        flight.begun += 1

    place = {
        group.requests[g].id: (group, g)
        for group in flight.groups
        for g in range(size)
        if group.rows[g] is None
    }
    length = settings.max_prompt_tokens + settings.max_new_tokens
    work, setup = Work(), Setup(
        policy.model, key, tuple(policy.tokenizer.eos_ids), length, length, config.sampler,
        guide=policy.guide,
    )  # fmt: skip
    sampler.submit(setup, work, [group.requests[g] for group, g in place.values()])
    ended: list[tuple[Group, int, Completion, str]] = []
    futures: dict[int, Future[Score]] = {}
    left = [group.rows.count(None) for group in flight.groups]
    with timer("sample"):
        while left.count(0) < settings.prompts:
            for completion in sampler.advance(setup, params, work, version=version):
                group, g = place[completion.request.id]
                text = policy.tokenizer.decode(completion.tokens.tolist())
                rollout.submit(futures, len(ended), pool, group.problem, text)
                ended.append((group, g, completion, text))
                left[_index(flight.groups, group)] -= 1
        for completion in sampler.unfinished(setup, work):
            group, g = place[completion.request.id]
            group.requests[g] = resume(completion)
    with timer("score"):
        scores = rollout.results(futures)
    for n, (group, g, completion, text) in enumerate(ended):
        group.rows[g] = Row(completion, text, scores[n])
    whole = [group for group in flight.groups if group.whole][: settings.prompts]
    flight.groups = [group for group in flight.groups if _index(whole, group) < 0]
    return rollout.experience([g.problem for g in whole], [row for g in whole for row in g.rows])


def abandon(flight: Flight) -> None:
    """Give up what a policy has sampled that is itself given up; its problems are the next."""
    flight.waiting = [group.problem for group in flight.groups] + flight.waiting
    flight.groups = []


def _index(groups: Sequence[Group], group: Group) -> int:
    return next((i for i, other in enumerate(groups) if other is group), -1)
