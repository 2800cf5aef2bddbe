"""The groups in progress, by the numbers that the schedule gives them.

`jaxrl.rollout.schedule.decide` knows groups by number alone. A `Flight` holds its state and the
groups that the numbers stand for. Synchronous and asynchronous runs both keep one. A checkpoint
holds its groups, with their problems, completions and scores, as JSON values and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.data.environments import Opening, Reply
from jaxrl.data.types import Problem, Score
from jaxrl.rollout import schedule
from jaxrl.rollout.drive import Group, OpenGroups
from jaxrl.rollout.programs import Row
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
from jaxrl.types import Completion, OutputConstraint, Prefix, Request

WORKER = "sampler"
"""The only worker of a run; it has all sampling devices."""

_PLAIN = frozenset({type(None), bool, int, float, str, np.ndarray})
_SCALARS = (bool, int, float, str, np.ndarray)
_RECORDS = {
    kind: tuple(kind.__annotations__)
    for kind in (Problem, Request, OutputConstraint, Prefix, Completion, Score, Opening, Reply)
}
"""Types and the names of their fields."""
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda items: {key: value for key, value in items},
}


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
        self.open.admit(len(numbers), self._size)
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
        self.open.abandon()
        self._groups, self.state = {}, State(admitted=self.state.admitted)
        return rows

    def get_state(self) -> dict[str, Any]:
        """The groups in progress between two steps, for a checkpoint."""
        groups = [[g.number, g.version, g.finished] for g in self.state.groups]
        return {
            "open_groups": groups_to_state(self.open),
            "schedule": {"groups": groups, "admitted": self.state.admitted},
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self.open = groups_from_state(saved["open_groups"])
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
    open_groups = groups_from_state(saved["open_groups"])
    open_groups.abandon()
    if not problems:
        open_groups.waiting = []
    plan = saved["schedule"] | {"groups": []}
    return saved | {"open_groups": groups_to_state(open_groups), "schedule": plan}


def trained(actions: Sequence[Action]) -> tuple[int, ...] | None:
    """Numbers of the groups that the next step trains on; None while its batch is incomplete."""
    return next((action.numbers for action in actions if isinstance(action, Train)), None)


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
                rows and [Row(*row) for row in rows],
            )
        )
    return open_groups


def _plain(sample: Drawn) -> dict[str, Any]:
    return {"problem": to_state(sample.problem), "ticket": sample.ticket}


def _drawn(saved: dict[str, Any]) -> Drawn:
    return Drawn(from_state(saved["problem"]), saved["ticket"])


def to_state(value: Any) -> Any:
    """Nested values as JSON values and arrays, which `from_state` reads back.

    Plain Python values, arrays, and the records of `_RECORDS` may be nested in any way.

    Raises:
      ValueError: a problem whose answer or metadata is neither of plain Python values nor arrays.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.generic):
        return {"scalar": np.asarray(value)}
    if isinstance(value, bytes):
        return {"bytes": np.frombuffer(value, np.uint8)}
    if kind in _RECORDS:
        fields = {name: to_state(getattr(value, name)) for name in _RECORDS[kind]}
        return {"record": kind.__name__, "fields": fields}
    if isinstance(value, list):
        return _entries(value)
    if isinstance(value, Mapping):
        return {"dict": [[to_state(k), to_state(v)] for k, v in value.items()]}
    if kind.__name__ in _COLLECTIONS:
        return {kind.__name__: _entries(value)}
    raise ValueError(
        f"a problem holds {value!r:.100}, a {kind.__name__}, which a checkpoint cannot keep "
        "while the problem is unfinished; use plain values or arrays in Problem.answer and "
        "Problem.metadata, or rollout.in_flight=1"
    )


def _entries(values: Collection[Any]) -> list[Any]:
    """Each of a collection. A prompt's tokens are copied at once: this is done at every step."""
    if _PLAIN.issuperset(map(type, values)):
        return list(values)
    return [to_state(entry) for entry in values]


def from_state(state: Any) -> Any:
    """What `to_state` was given.

    Raises:
      ValueError: anything else.
    """
    if isinstance(state, list):
        return [from_state(entry) for entry in state]
    if not isinstance(state, dict):
        return state
    if "record" in state:
        kinds = {kind.__name__: kind for kind in _RECORDS}
        if state["record"] not in kinds:
            raise ValueError(
                f"a checkpoint holds a {state['record']!r}, which is no record of ours"
            )
        return kinds[state["record"]](**{k: from_state(v) for k, v in state["fields"].items()})
    ((kind, value),) = state.items()
    if kind == "scalar":
        return value[()]
    if kind == "bytes":
        return value.tobytes()
    if kind not in _COLLECTIONS:
        raise ValueError(f"a checkpoint holds a {kind!r}, which is no collection of ours")
    return _COLLECTIONS[kind](from_state(value))
