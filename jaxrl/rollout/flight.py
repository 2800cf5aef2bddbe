"""The groups in progress, by the numbers that the schedule gives them.

`jaxrl.rollout.schedule.decide` knows groups by number alone. A `Flight` holds its state and the
groups that the numbers stand for. Synchronous and asynchronous runs both keep one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl.rollout import driver, schedule
from jaxrl.rollout.drive import Group, tokens
from jaxrl.rollout.driver import OpenGroups
from jaxrl.rollout.schedule import (
    Action,
    Dropped,
    Ended,
    Event,
    Finished,
    GroupState,
    Joined,
    Limits,
    State,
    Train,
)
from jaxrl.rollout.selection import Drawn

WORKER = "sampler"
"""The only worker of a run; it has all sampling devices."""


class Flight:
    """The groups in progress, and the schedule's state of them."""

    def __init__(self, limits: Limits, size: int) -> None:
        """Args: limits of the schedule, and the group size."""
        self.limits, self._size = limits, size
        self.open, self.state = OpenGroups(), State()
        self._groups: dict[int, Group] = {}

    def tell(self, event: Event) -> list[Action]:
        """The actions that follow from an event."""
        self.state, actions = schedule.decide(self.state, event, self.limits)
        return actions

    def join(self, version: int) -> list[Action]:
        """The worker joins with the newest weights, of this version."""
        self.state = self.state._replace(step=version)
        return self.tell(Joined(WORKER, version))

    def between_chunks(self) -> list[Action]:
        """The worker is between two chunks and may start groups."""
        return self.tell(Ended(WORKER))

    def drawn(self) -> list[Drawn]:
        """The problems in progress, and those that wait to be started."""
        return [*(group.drawn for group in self.open.groups), *self.open.waiting]

    def admit(self, numbers: Sequence[int]) -> list[Group]:
        """Start groups for waiting problems."""
        driver.admit(self.open, len(numbers), self._size)
        new = self.open.groups[-len(numbers) :]
        self._groups |= dict(zip(numbers, new, strict=True))
        return new

    def done(self) -> list[int]:
        """Numbers of the groups that have finished, and that the schedule has not been told of."""
        reported_numbers = {g.number for g in self.state.groups if g.finished is not None}
        return [
            n
            for n, group in self._groups.items()
            if group.rows is not None and n not in reported_numbers
        ]

    def finish(self) -> list[Action]:
        """The actions that follow from newly finished groups."""
        return [action for number in self.done() for action in self.tell(Finished(WORKER, number))]

    def drop(self, number: int) -> list[Action]:
        """The actions that follow from a finished group that is not trained on.

        Another one may be started in its place.
        """
        self.take([number])
        return self.tell(Dropped(WORKER, number))

    def group(self, number: int) -> Group:
        """A group in progress."""
        return self._groups[number]

    def take(self, numbers: Sequence[int]) -> list[Group]:
        """Remove the groups of a step and return them."""
        groups = [self._groups.pop(number) for number in numbers]
        gone = {group.first_id for group in groups}
        self.open.groups = [g for g in self.open.groups if g.first_id not in gone]
        return groups

    def length_bias(self, numbers: Sequence[int]) -> float:
        """Mean length of these groups' completions minus that of the groups admitted first, in
        tokens.

        A step in order of admission would train on the latter. Call it before `take`. Unfinished
        completions count with the tokens sampled so far, so the true bias of a step that prefers
        short completions is further below 0.
        """
        step_groups = [self._groups[number] for number in numbers]
        oldest = [self._groups[number] for number in sorted(self._groups)[: len(step_groups)]]
        mean = [np.mean([tokens(group) for group in groups]) for groups in (step_groups, oldest)]
        return float(mean[0] - mean[1]) / self._size

    def abandon(self) -> list[int]:
        """Discard all groups; their problems are started next.

        Returns:
          The ids of their rows, for `Pool.over`.
        """
        rows = [g.first_id + n for g in self.open.groups for n in range(self._size)]
        driver.abandon(self.open)
        self._groups, self.state = {}, State(admitted=self.state.admitted)
        return rows

    def get_state(self) -> dict[str, Any]:
        """The groups in progress between two steps, for a checkpoint."""
        groups = [[g.number, g.version, g.finished] for g in self.state.groups]
        return {
            "open_groups": driver.to_state(self.open),
            "schedule": {"groups": groups, "admitted": self.state.admitted},
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self.open = driver.from_state(saved["open_groups"])
        count = len(self.open.groups)
        fresh = {"groups": [[n, 0, None] for n in range(count)], "admitted": count}
        plan = saved.get("schedule", fresh)  # version 0.1 had no schedule of synchronous runs
        flying = tuple(GroupState(number, v, None, done) for number, v, done in plan["groups"])
        self.state = State(groups=flying, admitted=plan["admitted"])
        self._groups = {g.number: group for g, group in zip(flying, self.open.groups, strict=True)}


def restarted(saved: dict[str, Any], *, problems: bool) -> dict[str, Any]:
    """What `get_state` gave, with nothing in progress, for a run that samples otherwise.

    Args:
      saved: the state, with others' entries beside it.
      problems: keep those that have been drawn; they are started next.
    """
    open_groups = driver.from_state(saved["open_groups"])
    driver.abandon(open_groups)
    if not problems:
        open_groups.waiting = []
    plan = saved["schedule"] | {"groups": []}
    return saved | {"open_groups": driver.to_state(open_groups), "schedule": plan}


def trained(actions: Sequence[Action]) -> tuple[int, ...] | None:
    """Numbers of the groups that the next step trains on; None while its batch is incomplete."""
    return next((action.numbers for action in actions if isinstance(action, Train)), None)
