"""The groups in progress, from the draw of a problem to the batch of a step.

`jaxrl.rollout.schedule.decide` knows groups by number alone. A `Flight` holds its state, the groups
that the numbers stand for, and the sampler of a step. Every run that samples has one, whether it
trains in turns with sampling or meanwhile. A checkpoint holds its groups, with their problems,
completions and scores, as JSON values and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.data.selection import curriculum
from jaxrl.record.values import from_state, to_state
from jaxrl.rollout import programs, schedule
from jaxrl.rollout.drive import Chunk, Drive, Group, OpenGroups, Pending, RequestId
from jaxrl.rollout.schedule import (
    Admit,
    Arrived,
    Dropped,
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
from jaxrl.rollout.selection import Drawn, Source
from jaxrl.sampling.logits import Guide
from jaxrl.types import Completion, Params

WORKER = "sampler"
"""The only worker of a run; it has all sampling devices."""


class Weights(NamedTuple):
    """What a step samples with; constant during the step."""

    params: Params
    """As the sampler reads them."""
    guide: Guide
    version: int
    """Updates done, stamped on each token."""
    step: int
    """Steps done, the unit of the schedule."""


class Batch(NamedTuple):
    """What a step trains on, or a round of it."""

    groups: list[Group]
    """In order of admission."""
    rewards: np.ndarray
    """[P, G] of P groups; nan: a failed score."""
    admitted: int
    """Groups that were started in this step until the batch was complete."""
    length_bias: float
    """See `Flight.length_bias`."""


Row = dict[str, Any]
"""Of the record of a schedule, see docs/asynchronous.md."""
OpenDrive = Callable[[Weights, Mapping[RequestId, Pending | None]], Drive]
"""Makes the sampler of a step from its weights and from what is being answered already."""


class Flight:
    """The groups in progress, the schedule's state of them, and the sampler of the current step.

    A step is `start`, then any number of `between` and `chunk`, then `stop`. In turns with
    training (`collect.in_turns`), it is `start`, `admit`, what `drive.advance` does, and `stop`.
    """

    def __init__(
        self,
        limits: Limits,
        size: int,
        source: Source,
        open_drive: OpenDrive,
        close: Callable[[int], None],
        log: Callable[[Row], None] = lambda row: None,
        *,
        drawn_at_once: int = 0,
        together: bool = False,
        spare: int = 0,
    ) -> None:
        """Nothing is in progress at first.

        Args:
          limits: of the schedule; they may be changed between two batches.
          size: of a group.
          source: of problems.
          open_drive: makes the sampler of a step.
          close: called with the id of each row that is given up, see `Pool.over`.
          log: called with a row for each chunk of `chunk`.
          drawn_at_once: problems that are drawn together; 0: as many as start.
          together: answers take effect together, once nothing is left to sample; see
            `asynchronous.due`.
          spare: groups of equal rewards that are replaced between two batches, at most.
        """
        self.limits, self.together = limits, together
        self._size, self._source, self._open_drive = size, source, open_drive
        self._close, self._log = close, log
        self._drawn_at_once, self._spare, self._dropped = drawn_at_once, spare, 0
        self.open, self.state = OpenGroups(), State()
        self._groups: dict[int, Group] = {}
        self._drive: Drive | None = None
        self._unanswered: dict[RequestId, Pending | None] = {}
        self._weights: Weights | None = None
        self._row: Row = {}
        self._chunks = self._admitted = 0
        self.batch: Batch | None = None
        """Of the current step, once it is complete."""
        self.busy_s = 0.0
        """Seconds of decoding, in all."""

    @property
    def drive(self) -> Drive:
        """The sampler of the current step, with all groups in progress.

        It is opened when it is first needed: a batch may be complete before.
        """
        if self._drive is None:
            assert self._weights is not None
            self._drive = self._open_drive(self._weights, self._unanswered)
            self._drive.begin(self.open.groups)
        return self._drive

    def start(self, weights: Weights) -> None:
        """Start a step; everything in progress continues under its weights."""
        self._weights, self.batch, self._row, self._chunks, self._admitted = weights, None, {}, 0, 0
        if not self.state.held:
            self.state = self.state._replace(step=weights.step)
            self._tell(Joined(WORKER, weights.step))
        else:
            self._tell(Trained())
            self._tell(Arrived(WORKER, weights.step))

    def admit(self) -> None:
        """Start the groups that may start now; those that have finished are counted first."""
        self._finish()
        self._tell(Ended(WORKER))
        self._finish()

    def between(self, answered: Collection[int]) -> Row:
        """What takes effect between two chunks: answers, and groups that start.

        Args:
          answered: numbers of the answers that take effect.

        Returns:
          What was done, for the record.
        """
        assert self._weights is not None
        numbers, early = sorted(answered), self._row if not self._chunks else {}
        self._row = {"step": self._weights.step, "chunk": self._chunks, "answers": numbers, **early}
        self.drive.receive(self.drive.answers(numbers))
        self.admit()
        return self._row

    def chunk(self, *, decode: bool = True) -> bool:
        """Decode a chunk, if there is anything to decode, and record the row either way.

        Returns:
          Whether anything was decoded.
        """
        assert self._weights is not None
        decode = decode and bool(self.drive.work)
        if decode:
            done = self.drive.chunk(self._weights.version)
        else:
            done = Chunk(self.drive.sequences, self.drive.context, 0, 0, 0, 0, 0, 0.0)
        self.busy_s += done.seconds
        self._chunks += 1
        columns = {"version": self._weights.version, "decoded": decode, **done._asdict()}
        self._log({**self._row, **columns})
        return decode

    def stop(self) -> None:
        """End the step: what is in progress is kept as far as it has come."""
        if self._drive is not None:
            self._drive.save_partial()
            self._unanswered = dict(self._drive.pending.values())
        self._finish()
        self._drive = self._weights = None  # their arrays would lie beside those of the update

    def abandon(self) -> None:
        """Give up what has been sampled; its problems are the next to be started."""
        rows = [g.first_id + n for g in self.open.groups for n in range(self._size)]
        self.open.abandon()
        self._set_groups(State(admitted=self.state.admitted))
        for row in rows:
            self._close(row)

    def unanswered(self) -> list[RequestId]:
        """What answers are missing to, in order; any thread may ask."""
        drive = self._drive
        return sorted(dict(drive.pending.values()) if drive else self._unanswered)

    def get_state(self) -> dict[str, Any]:
        """The position between two steps and the groups in progress, for a checkpoint."""
        groups = [[g.number, g.version, g.finished] for g in self.state.groups]
        return {
            "source": self._source.get_state(),
            **({"dropped": self._dropped} if self._spare else {}),
            "open_groups": groups_to_state(self.open),
            "schedule": {"groups": groups, "admitted": self.state.admitted},
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self._source.set_state(saved["source"])
        self.open = groups_from_state(saved["open_groups"])
        count = len(self.open.groups)
        fresh = {"groups": [[n, 0, None] for n in range(count)], "admitted": count}
        plan = saved.get("schedule", fresh)  # version 0.1 had no schedule of synchronous runs
        flying = tuple(GroupState(number, v, None, done) for number, v, done in plan["groups"])
        self._set_groups(State(groups=flying, admitted=plan["admitted"]))
        self._dropped = saved.get("dropped", 0)

    def length_bias(self, numbers: Sequence[int]) -> float:
        """Mean length of these groups' completions minus that of the groups admitted first, in
        tokens.

        A step in order of admission would train on the latter. Unfinished completions count with
        the tokens sampled so far, so the true bias of a step that prefers short completions is
        further below 0.
        """
        step_groups = [self._groups[number] for number in numbers]
        oldest = [self._groups[number] for number in sorted(self._groups)[: len(step_groups)]]
        mean = [np.mean([tokens(group) for group in groups]) for groups in (step_groups, oldest)]
        return float(mean[0] - mean[1]) / self._size

    def _set_groups(self, state: State) -> None:
        """Continue with a state whose groups are the open ones, in order."""
        self.state, self._drive, self._dropped, self._unanswered = state, None, 0, {}
        numbers = [group.number for group in state.groups]
        self._groups = dict(zip(numbers, self.open.groups, strict=True))

    def _finish(self) -> None:
        """Tell the schedule of newly finished groups, some of which are replaced."""
        reported_numbers = {g.number for g in self.state.groups if g.finished is not None}
        for number in [n for n, g in self._groups.items() if g.rows is not None]:
            if number in reported_numbers:
                continue
            if self._is_replaced(number):
                self._remove([number])
                self._tell(Dropped(WORKER, number))
            else:
                self._tell(Finished(WORKER, number))

    def _is_replaced(self, number: int) -> bool:
        """Whether a group teaches nothing and is replaced; its source learns of it here."""
        group = self._groups[number]
        if self._dropped == self._spare or curriculum.informative(self._rewards([group]))[0]:
            return False
        self._dropped += 1
        self._row.setdefault("drop", []).append(number)
        self._source.learn([group.drawn], self._rewards([group]))
        return True

    def _rewards(self, groups: Sequence[Group]) -> np.ndarray:
        """[P, G] of P groups; nan: a failed score."""
        return np.array(
            [[programs.reward(row) for row in g.finished_rows[: self._size]] for g in groups]
        )

    def _tell(self, event: Event) -> None:
        """Do what follows from an event."""
        self.state, actions = schedule.decide(self.state, event, self.limits)
        for action in actions:
            match action:
                case Admit(_, numbers):
                    self._admit(numbers)
                case Train(numbers):
                    self._take(numbers)

    def _admit(self, numbers: tuple[int, ...]) -> None:
        assert self._weights is not None
        waiting = self.open.waiting
        while (missing := len(numbers) - len(waiting)) > 0:
            in_progress = [*(group.drawn for group in self.open.groups), *waiting]
            count = self._drawn_at_once or missing
            waiting += self._source.draw(count, self._weights.params, in_progress)
        self._admitted += len(numbers)
        self._row["admit"] = list(numbers)
        self.open.admit(len(numbers), self._size)
        new = self.open.groups[-len(numbers) :]
        self._groups |= dict(zip(numbers, new, strict=True))
        if self._drive is not None:
            self._drive.begin(new)

    def _take(self, numbers: tuple[int, ...]) -> None:
        bias = self.length_bias(numbers)
        groups = self._remove(numbers)
        rewards = self._rewards(groups)
        self._dropped = 0
        self._source.learn([group.drawn for group in groups], rewards)
        self.batch = Batch(groups, rewards, self._admitted, bias)
        self._row["train"] = list(numbers)

    def _remove(self, numbers: Sequence[int]) -> list[Group]:
        """Groups that are no longer in progress."""
        groups = [self._groups.pop(number) for number in numbers]
        gone = {group.first_id for group in groups}
        self.open.groups = [g for g in self.open.groups if g.first_id not in gone]
        return groups


def restarted(saved: dict[str, Any], *, problems: bool) -> dict[str, Any]:
    """What `get_state` gave, with nothing in progress, for a run that samples otherwise.

    Args:
      saved: the state, with others' entries beside it.
      problems: keep those that have been drawn; they are started next.
    """
    open_groups = groups_from_state(saved["open_groups"])
    open_groups.abandon()
    if not problems:
        open_groups.waiting = []
    plan = saved["schedule"] | {"groups": []}
    return saved | {"open_groups": groups_to_state(open_groups), "schedule": plan}


def tokens(group: Group) -> int:
    """Number of tokens of a group's completions; unfinished ones count as of the last pause."""
    if group.rows is not None:
        return sum(len(row.completion.tokens) for row in group.rows)
    longest = {place: len(c.tokens) for place, c in group.partial.items()}
    for place, results in group.log.items():  # a later turn has those before it
        lengths = [len(result.tokens) for result in results if isinstance(result, Completion)]
        longest[place] = max([longest.get(place, 0), *lengths])
    return sum(longest.values())


def groups_to_state(open_groups: OpenGroups) -> dict[str, Any]:
    """The open groups as JSON values and arrays, for a checkpoint."""
    return {
        "next_id": open_groups.next_id,
        "waiting": [_plain(sample) for sample in open_groups.waiting],
        "groups": [
            {
                "drawn": _plain(group.drawn),
                "first_id": group.first_id,
                "log": to_state(list(group.log.items())),
                "partial": to_state(list(group.partial.items())),
                "rows": to_state(group.rows and [tuple(row) for row in group.rows]),
            }
            for group in open_groups.groups
        ],
    }


def groups_from_state(saved: dict[str, Any]) -> OpenGroups:
    """The open groups that `groups_to_state` was given."""
    open_groups = OpenGroups([], [_drawn(entry) for entry in saved["waiting"]], saved["next_id"])
    for group_state in saved["groups"]:
        rows = from_state(group_state["rows"])
        open_groups.groups.append(
            Group(
                _drawn(group_state["drawn"]),
                group_state["first_id"],
                dict(from_state(group_state["log"])),
                dict(from_state(group_state["partial"])),
                rows and [programs.Row(*row) for row in rows],
            )
        )
    return open_groups


def _plain(sample: Drawn) -> dict[str, Any]:
    return {"problem": to_state(sample.problem), "ticket": sample.ticket}


def _drawn(saved: dict[str, Any]) -> Drawn:
    return Drawn(from_state(saved["problem"]), saved["ticket"])
