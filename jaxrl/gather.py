"""A step's experience, in whichever way the config has it gathered."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from data.types import Problem
from jaxrl import guided, in_flight, objective, rollout, selection
from jaxrl.in_flight import Flight
from jaxrl.logits import Guide
from jaxrl.metrics import Timer
from jaxrl.policy import Policy
from jaxrl.rollout import Experience
from jaxrl.selection import Source
from jaxrl.types import Params
from jaxrl.workshop import Workshop

_SAMPLING = 1  # folded into the run's key, for its streams of sampled tokens


class Gather(NamedTuple):
    """Where a run's experience comes from."""

    step: Callable[[Params, Guide, int, int, Timer], tuple[Experience, int]]
    """`(sampling params, guide, version, step, timer)`: the experience of `rollout.prompts` groups,
    and how many groups were sampled for it."""
    get_state: Callable[[], dict[str, Any]]
    """The position, for a checkpoint."""
    set_state: Callable[[dict[str, Any]], None]
    abandon: Callable[[], None]
    """Give up what has been sampled for the steps to come."""


def open_gather(shop: Workshop, source: Source, stride: int) -> Gather:
    """The experience of a run or of a stage of it, from its start.

    Args:
      shop: of the run, with the stage's config, task and pool.
      source: of its prompts.
      stride: by how much the ids of the sequences of two steps differ; at least as many as a step
        samples.
    """
    config = shop.config
    settings = config.rollout
    prompts, group = settings.prompts, settings.group_size
    with jax.set_mesh(shop.sampling_mesh):
        key = jax.random.fold_in(jax.random.key(config.seed), _SAMPLING)
    flight = Flight([], [], 0)

    def batch(
        actor: Policy, params: Params, version: int, first_id: int, timer: Timer
    ) -> Experience:
        told = {"key": key, "first_id": first_id, "version": version, "timer": timer}
        problems = source.draw(prompts, params)
        if config.guidance.guide:
            experience = guided.collect(
                actor, params, problems, shop.task, shop.pool, config, **told
            )
        else:
            experience = rollout.collect(
                actor, params, problems, shop.pool, settings, config.sampler, **told
            )
        source.learn(rollout.rewards_by_group(experience))
        return experience

    def step(
        params: Params, guide: Guide, version: int, step: int, timer: Timer
    ) -> tuple[Experience, int]:
        actor = shop.actor._replace(guide=guide)
        if settings.in_flight > 1:
            experience, sampled = in_flight.collect(
                actor, params, lambda: source.draw(prompts, params), flight, shop.pool, config,
                key=key, version=version, timer=timer,
            ), prompts  # fmt: skip
        else:
            first = (step - 1) * stride
            experience, sampled = selection.dynamic(
                lambda i: batch(actor, params, version, first + i * prompts * group, timer),
                prompts=prompts,
                group_size=group,
                oversampling=settings.oversampling,
            )
        if objective.needs_greedy(config.objective):
            experience = experience._replace(
                greedy=greedy(actor, params, experience.problems, timer)
            )
        return experience, sampled

    def greedy(
        actor: Policy, params: Params, problems: list[Problem], timer: Timer
    ) -> list[rollout.Score]:
        one = dataclasses.replace(settings, group_size=1, temperature=0.0)
        return rollout.collect(
            actor, params, problems, shop.pool, one, config.sampler,
            key=key, first_id=0, version=0, timer=timer,
        ).scores  # fmt: skip

    def get_state() -> dict[str, Any]:
        state = {"source": source.get_state()}
        if settings.in_flight > 1:
            state["flight"] = np.frombuffer(pickle.dumps(flight), np.uint8)
        return state

    def set_state(state: dict[str, Any]) -> None:
        nonlocal flight
        source.set_state(state["source"])
        if "flight" in state:
            flight = pickle.loads(state["flight"].tobytes())

    return Gather(step, get_state, set_state, lambda: in_flight.abandon(flight))
