"""Which worker samples which groups with which weights, and when groups are trained on.

`decide` is a pure function from a state and an event to the next state and a list of actions. It
uses no arrays, clocks or threads. The live run, its replay, the simulator and the property tests
all call it.

A *group* is a problem and its completions; a step's batch is `groups_per_step` groups. *Version* v
is the weights after v steps: step t trains weights t, and the lag of a token in that step is t
minus the version that sampled it. A group's lag is bounded when it is admitted, by reservation: the
group at place r among those not yet trained on belongs to step t + r // groups_per_step, and a
worker with version v may start it if that step exceeds v by at most `staleness`. No group is
discarded, and slow groups are neither dropped nor overtaken.

The number of groups that may start follows from the groups in progress. No counter has to be
corrected after a restart, a failed group or a lost worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Order = Literal["admitted", "finished"]


class Limits(NamedTuple):
    """Limits of a schedule."""

    groups_per_step: int
    staleness: int | None = 0
    """Greatest lag of a token in steps; None: unbounded, which needs `in_flight`."""
    in_flight: int = 0
    """Most groups in progress, including those that wait for training; 0: what `staleness`
    allows."""
    order: Order = "admitted"
    """Which groups a step takes: the oldest, or those that finish first."""
    steps: int | None = None
    """Steps of the run; no group is started that none of them could take."""


class GroupState(NamedTuple):
    """A group that has been admitted and not yet been taken for a step."""

    number: int
    """Its id: the place in the order of admission."""
    version: int
    """The oldest weights that sampled any of its tokens."""
    worker: str | None
    """The worker that samples it; None: unassigned, because its worker was lost."""
    finished: int | None = None
    """Its place in the order in which groups finished; None: unfinished."""


class State(NamedTuple):
    """All that decisions depend on. Mappings are never changed in place."""

    step: int = 0
    """Completed steps, which is the version of the newest weights."""
    training: tuple[int, ...] = ()
    """Numbers of the groups that the current step trains on."""
    held: Mapping[str, int] = {}
    """The version that each worker samples with."""
    arrived: Mapping[str, int] = {}
    """The newest version that each worker has received."""
    groups: tuple[GroupState, ...] = ()
    """In order of admission."""
    admitted: int = 0
    """Groups admitted so far, which is the number of the next one; no decision depends on it."""


class Joined(NamedTuple):
    """A worker has joined, with weights of a version."""

    worker: str
    version: int


class Lost(NamedTuple):
    """A worker is gone. What it sampled up to its last chunk is kept, and others continue it."""

    worker: str


class Ended(NamedTuple):
    """A worker is between two chunks of decoding, or idle. Only then does it change weights and
    start groups."""

    worker: str


class Finished(NamedTuple):
    """A worker's group has been sampled and scored."""

    worker: str
    number: int


class Dropped(NamedTuple):
    """A worker's group will not be trained on, as its rewards are all equal or it failed."""

    worker: str
    number: int


class Trained(NamedTuple):
    """The current step is done; its weights exist."""


class Arrived(NamedTuple):
    """A worker has received weights, complete and verified."""

    worker: str
    version: int


Event = Joined | Lost | Ended | Finished | Dropped | Trained | Arrived


class Swap(NamedTuple):
    """The worker continues sampling with the weights of a version, which have arrived."""

    worker: str
    version: int


class Admit(NamedTuple):
    """The worker starts new groups."""

    worker: str
    numbers: tuple[int, ...]


class Resume(NamedTuple):
    """The worker continues the groups of a lost worker."""

    worker: str
    numbers: tuple[int, ...]


class Train(NamedTuple):
    """The next step trains on these groups."""

    numbers: tuple[int, ...]


class Publish(NamedTuple):
    """The newest weights are sent to a worker."""

    worker: str
    version: int


Action = Swap | Admit | Resume | Train | Publish


def check(limits: Limits) -> None:
    """Refuse limits under which a run would make no progress or admit groups without bound.

    Raises:
      ValueError: naming the field.
    """
    if limits.staleness is not None and limits.staleness < 0:
        raise ValueError(f"staleness={limits.staleness}: use 0, which is synchronous, or more")
    if limits.staleness is None and not limits.in_flight:
        raise ValueError("staleness=None with in_flight=0 has no bound; set one of them")
    if limits.in_flight and limits.in_flight < limits.groups_per_step:
        raise ValueError(
            f"in_flight={limits.in_flight} is less than a step's {limits.groups_per_step} groups; "
            "use as many or more, or 0 for what staleness allows"
        )


def decide(state: State, event: Event, limits: Limits) -> tuple[State, list[Action]]:
    """The next state and the actions after an event.

    Events of unknown workers, or of groups that another worker has taken over, change nothing.

    Args:
      state: before the event.
      event: what has happened.
      limits: of the run.

    Returns:
      The next state, and the actions in order.
    """
    match event:
        case Joined(worker, version):
            state = state._replace(
                held={**state.held, worker: version},
                arrived={**state.arrived, worker: version},
                groups=_unassigned(state.groups, worker),
            )
            publish = [Publish(worker, state.step)] if version < state.step else []
            state, actions = _train(state, limits)  # after a restart the batch may be complete
            return state, [*publish, *actions]
        case Lost(worker):
            versions = {name: v for name, v in state.held.items() if name != worker}
            arrived = {name: v for name, v in state.arrived.items() if name != worker}
            groups = _unassigned(state.groups, worker)
            return state._replace(held=versions, arrived=arrived, groups=groups), []
        case Arrived(worker, version):
            if worker not in state.held:
                return state, []
            newest = max(version, state.arrived[worker])
            return state._replace(arrived={**state.arrived, worker: newest}), []
        case Ended(worker):
            return _between_chunks(state, worker, limits) if worker in state.held else (state, [])
        case Finished(worker, number):
            place = 1 + max((g.finished for g in state.groups if g.finished is not None), default=0)
            groups = tuple(
                g._replace(finished=place) if _is(g, worker, number) else g for g in state.groups
            )
            return _train(state._replace(groups=groups), limits)
        case Dropped(worker, number):
            live_groups = tuple(g for g in state.groups if not _is(g, worker, number))
            return _train(state._replace(groups=live_groups), limits)
        case Trained():
            state = state._replace(step=state.step + 1, training=())
            state, actions = _train(state, limits)
            return state, [*(Publish(worker, state.step) for worker in state.held), *actions]


def room(state: State, version: int, limits: Limits) -> int:
    """How many groups a worker that holds `version` may start now; 0 or more."""
    size, live, step = limits.groups_per_step, len(state.groups), _next_step(state)
    bounds = []
    if limits.in_flight:
        bounds.append(limits.in_flight - live)
    if limits.steps is not None:
        bounds.append((limits.steps - step) * size - live)
    if limits.staleness is not None:
        last = version + limits.staleness
        if limits.order == "admitted":
            bounds.append((last - step + 1) * size - live)
        else:
            due = [g.version + limits.staleness for g in state.groups]
            bounds += [
                (d - step + 1) * size - sum(deadline <= d for deadline in due)
                for d in {last, *due}
                if d >= last
            ]
    return max(0, min(bounds))


def batch(state: State, limits: Limits) -> tuple[int, ...] | None:
    """Numbers of the groups that the next step takes, oldest first; None: some are missing.

    In order `finished` they are the first finished groups that leave all others enough time: of the
    groups that must be trained on by a given step, no more remain than the steps up to it can take.
    A step waits for a group that is due.
    """
    size, step = limits.groups_per_step, _next_step(state)
    if limits.order == "admitted":
        chosen = list(state.groups[:size])
        if len(chosen) < size or any(g.finished is None for g in chosen):
            return None
        return tuple(g.number for g in chosen)
    due: dict[int, int] = {}
    if limits.staleness is not None:
        last = [g.version + limits.staleness for g in state.groups]
        due = {d: sum(deadline <= d for deadline in last) - (d - step) * size for d in set(last)}
    chosen = []
    done = [g for g in state.groups if g.finished is not None]
    if len(done) < size:
        return None
    for group in sorted(done, key=lambda g: g.finished or 0):
        with_it = [*chosen, group]
        missing = [
            needed - sum(g.version + (limits.staleness or 0) <= d for g in with_it)
            for d, needed in due.items()
        ]
        if len(with_it) <= size and max(missing, default=0) <= size - len(with_it):
            chosen = with_it
    return tuple(sorted(g.number for g in chosen)) if len(chosen) == size else None


def _between_chunks(state: State, worker: str, limits: Limits) -> tuple[State, list[Action]]:
    actions: list[Action] = []
    version = state.arrived[worker]
    if version > state.held[worker]:
        state = state._replace(held={**state.held, worker: version})
        actions.append(Swap(worker, version))
    left = tuple(
        g.number
        for g in state.groups
        if g.worker is None and g.finished is None and g.version <= version
    )
    if left:
        groups = tuple(g._replace(worker=worker) if g.number in left else g for g in state.groups)
        state = state._replace(groups=groups)
        actions.append(Resume(worker, left))
    if count := room(state, version, limits):
        numbers = tuple(range(state.admitted, state.admitted + count))
        new = tuple(GroupState(number, version, worker) for number in numbers)
        state = state._replace(groups=state.groups + new, admitted=state.admitted + count)
        actions.append(Admit(worker, numbers))
    return state, actions


def _train(state: State, limits: Limits) -> tuple[State, list[Action]]:
    """Take the next step, if none is in progress and its batch is complete."""
    if state.training or state.step == limits.steps:
        return state, []
    numbers = batch(state, limits)
    if numbers is None:
        return state, []
    rest = tuple(g for g in state.groups if g.number not in numbers)
    return state._replace(training=numbers, groups=rest), [Train(numbers)]


def _next_step(state: State) -> int:
    """Index of the step that takes the next batch."""
    return state.step + bool(state.training)


def _is(group: GroupState, worker: str, number: int) -> bool:
    return group.number == number and group.worker == worker and group.finished is None


def _unassigned(groups: Sequence[GroupState], worker: str) -> tuple[GroupState, ...]:
    """The groups, with the unfinished ones of a worker unassigned."""
    return tuple(
        g._replace(worker=None) if g.worker == worker and g.finished is None else g for g in groups
    )
