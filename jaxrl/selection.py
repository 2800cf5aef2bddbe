"""Which prompts a step trains on: the stream as it comes, a curriculum, dynamic sampling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from data import curriculum, stream
from data.types import Problem, Task
from jaxrl import functions
from jaxrl.config import CurriculumConfig
from jaxrl.rollout import Experience, rewards_by_group

_GIVEN = {"state", "count", "allowed"}


class Source(NamedTuple):
    """Where a run's prompts come from."""

    draw: Callable[[], list[Problem]]
    """The next batch."""
    learn: Callable[[np.ndarray], None]
    """Told the rewards [P, G] of the last batch drawn; nan is a failed score."""
    get_state: Callable[[], dict[str, Any]]
    """The position, JSON-able, for a checkpoint."""
    set_state: Callable[[dict[str, Any]], None]


def check(config: CurriculumConfig, batch_size: int) -> None:
    """Refuse a curriculum that does not exist, or that cannot fill a batch."""
    if not config.choose:
        return
    functions.resolve(config.choose, config.args, _GIVEN)
    if config.prompts < batch_size:
        raise ValueError(
            f"curriculum.prompts={config.prompts} cannot fill a batch of rollout.prompts="
            f"{batch_size}; raise the one or lower the other"
        )


def open_source(config: CurriculumConfig, task: Task, *, seed: int, batch_size: int) -> Source:
    """The prompts of a run, from their start."""
    if not config.choose:
        batches = stream.prompts(task, split="train", seed=seed, batch_size=batch_size)
        return Source(
            lambda: next(batches), lambda rewards: None, batches.get_state, batches.set_state
        )
    function = functions.resolve(config.choose, config.args, _GIVEN)
    size = min(config.prompts, task.sizes.get("train", config.prompts))
    state = curriculum.start(size, window=config.window, seed=seed)
    chosen = np.zeros(0, np.int64)

    def draw() -> list[Problem]:
        nonlocal state, chosen
        given = {"state": state, "count": batch_size, "allowed": np.ones(size, bool)}
        state, chosen = functions.call(function, config.args, given)
        return [task.problem("train", seed, int(i)) for i in chosen]

    def learn(rewards: np.ndarray) -> None:
        nonlocal state
        state = curriculum.record(state, chosen, rewards)

    def set_state(saved: dict[str, Any]) -> None:
        nonlocal state
        state = curriculum.from_json(curriculum.Prompts, saved)

    return Source(draw, learn, lambda: curriculum.to_json(state), set_state)


def dynamic(
    sample: Callable[[int], Experience], *, prompts: int, group_size: int, oversampling: float
) -> tuple[Experience, int]:
    """DAPO's dynamic sampling (Yu et al. 2025): groups whose rewards all agree make way for others.

    Args:
      sample: makes the i-th batch of `prompts` groups.
      prompts: groups to train on.
      group_size: completions of each.
      oversampling: batches that may be sampled for it, 1 being the one that is always sampled.

    Returns:
      `prompts` groups, informative ones first in the order sampled, filled up with others where the
      budget did not suffice; and how many groups were sampled.
    """
    kept: list[Experience] = []
    rest: list[Experience] = []
    state = curriculum.quota(prompts, oversampling=oversampling)
    for i in itertools.count():
        experience = sample(i)
        rewards = rewards_by_group(experience)
        state, keep, more = curriculum.dynamic(state, rewards)
        kept.append(groups(experience, keep, group_size))
        rest.append(groups(experience, ~keep, group_size))
        if not more or state.sampled + prompts > state.budget:
            break
    everything = joined([*kept, *rest])
    first = np.arange(len(everything.problems)) < prompts
    return groups(everything, first, group_size), int(state.sampled)


def groups(experience: Experience, keep: np.ndarray, group_size: int) -> Experience:
    """The groups marked by `keep` [P]."""
    each = np.repeat(keep, group_size)
    return Experience(
        *(
            list(itertools.compress(field, mask))
            for field, mask in zip(experience, (keep, each, each, each, keep), strict=True)
        )
    )


def joined(parts: list[Experience]) -> Experience:
    """One experience after the other."""
    return Experience(*(list(itertools.chain(*fields)) for fields in zip(*parts, strict=True)))
