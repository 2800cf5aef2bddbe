"""Sampling that continues while the policy is trained, as `jaxrl.rollout.schedule` decides.

A `Sampling` works in steps and, within a step, in chunks of decoding. A step starts with new
weights: every sequence in progress continues under them, and its KV cache is recomputed. The only
traces of older weights are the tokens, each with the version and the log-probability that it was
sampled with. Between two chunks, answers of scorers and environments take effect, groups start, and
a batch may become complete. Training then takes the batch, and sampling continues under the same
weights until the update is done.

The samples of a step depend on its weights and on two things that are recorded: which answers took
effect before which chunk, and the number of chunks. There are three sources of these: `lockstep`
fixes them in advance, `jaxrl.rollout.live` takes them from the clock, and `recorded` repeats a
record bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from jaxrl.data import curriculum
from jaxrl.rollout import driver, programs, schedule
from jaxrl.rollout.drive import Answer, Asked, Drive, Group
from jaxrl.rollout.driver import OpenGroups
from jaxrl.rollout.schedule import (
    Admit,
    Arrived,
    Ended,
    Event,
    Finished,
    GroupState,
    Joined,
    Limits,
    State,
    Train,
    Trained,
)
from jaxrl.rollout.selection import Source
from jaxrl.sampling.logits import Guide
from jaxrl.types import Params

_WORKER = "sampler"


class Weights(NamedTuple):
    """What a step samples with; constant during the step."""

    params: Params
    guide: Guide
    version: int
    """Updates done, stamped on each token."""
    step: int
    """Steps done, the unit of the schedule."""


class Batch(NamedTuple):
    """What a step trains on."""

    groups: list[Group]
    """Groups whose rewards differ come first, as in a synchronous step."""
    admitted: int
    """Groups that were started in this step until the batch was complete."""


Open = Callable[[Weights, Mapping[Asked, Future[Answer]]], Drive]
"""Makes the sampler of a step from its weights and from what is being answered already."""
Row = dict[str, Any]


class Sampling:
    """The groups in progress and the state of the schedule."""

    def __init__(
        self,
        limits: Limits,
        size: int,
        source: Source,
        open_drive: Open,
        log: Callable[[Row], None],
    ) -> None:
        """Args: limits of the schedule, the group size, and where problems come from.

        `log` is given a row for each chunk, see docs/asynchronous.md.
        """
        self.limits, self._size, self._source = limits, size, source
        self._open_drive, self._log = open_drive, log
        self._open_groups, self._state = OpenGroups(), State()
        self._groups: dict[int, Group] = {}
        self._drive: Drive | None = None
        self._weights: Weights | None = None
        self._row: Row = {}
        self._chunks = self._admitted = 0
        self.batch: Batch | None = None
        """Of the current step, once it is complete."""
        self.busy_s = 0.0
        """Seconds of decoding, in all."""

    @property
    def drive(self) -> Drive:
        """The sampler of the current step."""
        assert self._drive is not None
        return self._drive

    def start(self, weights: Weights) -> None:
        """Start a step; everything in progress continues under its weights."""
        known = {} if self._drive is None else dict(self._drive.asked.values())
        self._weights, self.batch, self._row = weights, None, {}
        self._chunks = self._admitted = 0
        if not self._state.held:
            self._state = self._state._replace(step=weights.step)
            self._tell(Joined(_WORKER, weights.step))
        else:
            self._tell(Trained())
            self._tell(Arrived(_WORKER, weights.step))
        self._drive = self._open_drive(weights, {k: f for k, f in known.items() if f is not None})
        self._drive.begin(self._open_groups.groups)

    def between(self, answered: Collection[int]) -> Row:
        """What takes effect between two chunks.

        Args:
          answered: numbers of the answers that take effect.

        Returns:
          What was done, for the record.
        """
        assert self._weights is not None
        numbers, early = sorted(answered), self._row if not self._chunks else {}
        self._row = {"step": self._weights.step, "chunk": self._chunks, "answers": numbers, **early}
        self.drive.receive(self.drive.answers(numbers))
        self._finish()
        self._tell(Ended(_WORKER))
        self._finish()
        return self._row

    def chunk(self, *, decode: bool = True) -> bool:
        """Decode a chunk, if there is anything to decode, and record the row either way.

        Returns:
          Whether anything was decoded.
        """
        assert self._weights is not None
        decode = decode and bool(self.drive.work)
        sequences, start = self.drive.sequences, perf_counter()
        if decode:
            self.drive.chunk(self._weights.version)
        seconds = perf_counter() - start
        self.busy_s += seconds
        self._chunks += 1
        more = {"sequences": sequences, "context": self.drive.context, "seconds": seconds}
        self._log({**self._row, "version": self._weights.version, "decoded": decode, **more})
        return decode

    def stop(self) -> None:
        """End the step and store its unfinished sequences."""
        self.drive.save_partial()
        self._finish()

    def abandon(self) -> None:
        """Discard what has been sampled; its problems are the next to be started."""
        driver.abandon(self._open_groups)
        self._groups, self._drive = {}, None
        self._state = State(admitted=self._state.admitted)

    def get_state(self) -> dict[str, Any]:
        """The position between two steps and what is in flight, for a checkpoint."""
        groups = [[g.number, g.version, g.finished] for g in self._state.groups]
        return {
            "source": self._source.get_state(),
            "open_groups": driver.to_state(self._open_groups),
            "schedule": {"groups": groups, "admitted": self._state.admitted},
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Continue from a position; groups of a synchronous run are started again."""
        self._source.set_state(saved["source"])
        self._open_groups, self._drive = driver.from_state(saved["open_groups"]), None
        if "schedule" not in saved:
            self._groups, self._state = {}, State()
            driver.abandon(self._open_groups)
            return
        plan = saved["schedule"]
        groups = tuple(GroupState(number, v, None, done) for number, v, done in plan["groups"])
        self._state = State(groups=groups, admitted=plan["admitted"])
        self._groups = {
            g.number: own for g, own in zip(groups, self._open_groups.groups, strict=True)
        }

    def _finish(self) -> None:
        """Send the schedule the groups that have been sampled and scored."""
        known = {g.number for g in self._state.groups if g.finished is not None}
        for number, group in list(self._groups.items()):
            if group.rows is not None and number not in known:
                self._tell(Finished(_WORKER, number))

    def _tell(self, event: Event) -> None:
        self._state, actions = schedule.decide(self._state, event, self.limits)
        for action in actions:
            match action:
                case Admit(_, numbers):
                    self._admit(numbers)
                case Train(numbers):
                    self._take(numbers)

    def _admit(self, numbers: tuple[int, ...]) -> None:
        assert self._weights is not None
        while len(self._open_groups.waiting) < len(numbers):
            params = self._weights.params
            self._open_groups.waiting += self._source.draw(self.limits.groups_per_step, params)
        driver.admit(self._open_groups, len(numbers), self._size)
        new = self._open_groups.groups[-len(numbers) :]
        self._groups |= dict(zip(numbers, new, strict=True))
        self._admitted += len(numbers)
        self._row["admit"] = list(numbers)
        self.drive.begin(new)

    def _take(self, numbers: tuple[int, ...]) -> None:
        groups = [self._groups.pop(number) for number in numbers]
        gone = {group.first_id for group in groups}
        self._open_groups.groups = [g for g in self._open_groups.groups if g.first_id not in gone]
        rewards = np.array([[programs.reward(row) for row in g.rows[: self._size]] for g in groups])
        self._source.learn([group.drawn for group in groups], rewards)
        uninformative = ~curriculum.informative(rewards)
        order = np.argsort(uninformative, kind="stable")
        self.batch = Batch([groups[i] for i in order], self._admitted)
        self._row["train"] = list(numbers)


def due(sampling: Sampling, answered: Collection[int]) -> list[int]:
    """Answers that take effect now, of those that may.

    With `staleness` 0 they do so together, once nothing is left to sample, as in a synchronous run.
    """
    asked, sampled = sampling.drive.asked, not sampling.drive.work
    if sampling.limits.staleness == 0:
        return list(asked) if sampled and len(answered) == len(asked) else []
    return [n for n in asked if n in answered]


def lockstep(sampling: Sampling, weights: Weights, chunks: int) -> Batch:
    """A step whose update takes a given number of chunks, so that its samples are deterministic.

    Answers take effect one chunk after they were requested; the step waits for them.

    Args:
      sampling: changed in place.
      weights: of the step.
      chunks: sampled after the batch is complete.

    Raises:
      RuntimeError: there is nothing left to wait for, and no batch.
    """
    sampling.start(weights)
    before: set[int] = set()
    left = chunks
    while True:
        answered = before if sampling.drive.work else set(sampling.drive.asked)
        row = sampling.between(due(sampling, answered))
        before = set(sampling.drive.asked)
        going = bool(sampling.drive.work or before)
        if sampling.batch is None:
            if not going:
                raise RuntimeError(
                    f"step {weights.step + 1}: nothing is being sampled and no batch is complete; "
                    f"the schedule makes no progress at {row}"
                )
            sampling.chunk()
            continue
        sampling.chunk(decode=going and left > 0)
        if not going or left <= 0:
            sampling.stop()
            return sampling.batch
        left -= 1


def recorded(sampling: Sampling, weights: Weights, rows: Sequence[Row]) -> Batch:
    """A step as it was recorded.

    Args:
      sampling: changed in place.
      weights: of the step.
      rows: of the step, in order.

    Raises:
      ValueError: the record does not have the step.
      RuntimeError: other groups begin or are trained on than were recorded.
    """
    if not rows:
        raise ValueError(
            f"asynchronous.schedule: the recorded run has no schedule of step {weights.step + 1}; "
            "lower steps, or continue with live or lockstep:K"
        )
    sampling.start(weights)
    for row in rows:
        done = sampling.between(row["answers"])
        for name in ("admit", "train"):
            if done.get(name) != row.get(name):
                raise RuntimeError(
                    f"step {weights.step + 1}, chunk {row['chunk']}: {name} was {row.get(name)} "
                    f"and is {done.get(name)}; was the run recorded with another config?"
                )
        sampling.chunk(decode=row["decoded"])
    sampling.stop()
    if sampling.batch is None:
        raise RuntimeError(f"step {weights.step + 1}: its record ends before its batch is complete")
    return sampling.batch
