"""The driver: runs rollout programs over one sampler, and keeps what a step does not wait for.

A group is one run of a program. Its log holds every result that the program received, by place (the
path of forks that leads to it) and in order. A sequence that is unfinished when a step has what it
needs goes on in a later step under newer weights; each token keeps the log-probability and the
policy version that it was sampled with (partial rollouts: Kimi k1.5, 2025; APRIL, 2025).

A restart runs each program again and gives it the results in its log, so a group continues where it
stood. What programs receive does not depend on timing: completions arrive in the sampler's order,
and scores and replies of environments take effect together, once nothing is left to sample or
enough groups wait for nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from jaxrl.data.environments import Opening, Reply
from jaxrl.data.scoring import Pool
from jaxrl.data.types import Score
from jaxrl.mesh import distributed
from jaxrl.record.metrics import Timer
from jaxrl.rollout import state
from jaxrl.rollout.programs import Act, Context, Fork, Grade, Program, Row, Sample
from jaxrl.rollout.selection import Drawn
from jaxrl.sampling import sampler
from jaxrl.sampling.requests import resume
from jaxrl.sampling.work import Setup, Work
from jaxrl.types import Completion, Params, Request

Place = tuple[int, ...]
Answer = Score | Opening | Reply
Result = Completion | Answer


@dataclasses.dataclass
class Group:
    """A problem and everything sampled for it so far."""

    drawn: Drawn
    first_id: int
    """Id of its first row; names its random streams."""
    log: dict[Place, list[Result]] = dataclasses.field(default_factory=dict)
    """What each part of its program received, in order."""
    begun: dict[Place, Completion] = dataclasses.field(default_factory=dict)
    """Sequences in progress."""
    rows: list[Row] | None = None
    """What the program returned; None until it has."""


@dataclasses.dataclass
class Flight:
    """The groups that are sampled for this step and later ones, oldest first."""

    groups: list[Group] = dataclasses.field(default_factory=list)
    waiting: list[Drawn] = dataclasses.field(default_factory=list)
    """Problems that have been drawn but not begun."""
    next_id: int = 0
    """Id of the next group's first row."""


@dataclasses.dataclass
class _Node:
    """A running program, or a part of one that a fork began."""

    program: Generator[Any, Any, Any]
    group: Group
    place: Place
    parent: _Node | None = None
    received: int = 0
    forks: int = 0
    returned: list[Any] = dataclasses.field(default_factory=list)
    left: int = 0


class _Wants(NamedTuple):
    """A result that a node waits for."""

    node: _Node
    wanted: Sample | Grade | Act


def admit(flight: Flight, count: int, size: int) -> None:
    """Begin groups of `size` rows for the next `count` of the problems that wait."""
    for drawn in flight.waiting[:count]:
        flight.groups.append(Group(drawn, flight.next_id))
        flight.next_id += size
    del flight.waiting[:count]


def abandon(flight: Flight) -> None:
    """Give up what has been sampled; the problems are the next to be begun."""
    flight.waiting = [group.drawn for group in flight.groups] + flight.waiting
    flight.groups = []


def to_state(flight: Flight) -> dict[str, Any]:
    """The flight as JSON values and arrays, for a checkpoint."""
    return {
        "next_id": flight.next_id,
        "waiting": [_plain(drawn) for drawn in flight.waiting],
        "groups": [
            {
                "drawn": _plain(group.drawn),
                "first_id": group.first_id,
                "log": state.to_state(list(group.log.items())),
                "begun": state.to_state(list(group.begun.items())),
                "rows": state.to_state(group.rows and [tuple(row) for row in group.rows]),
            }
            for group in flight.groups
        ],
    }


def from_state(saved: dict[str, Any]) -> Flight:
    """The flight that `to_state` was given."""
    flight = Flight([], [_drawn(each) for each in saved["waiting"]], saved["next_id"])
    for each in saved["groups"]:
        rows = state.from_state(each["rows"])
        flight.groups.append(
            Group(
                _drawn(each["drawn"]),
                each["first_id"],
                dict(state.from_state(each["log"])),
                dict(state.from_state(each["begun"])),
                rows and [Row(*row) for row in rows],
            )
        )
    return flight


def _plain(drawn: Drawn) -> dict[str, Any]:
    return {"problem": state.to_state(drawn.problem), "ticket": drawn.ticket}


def _drawn(saved: dict[str, Any]) -> Drawn:
    return Drawn(state.from_state(saved["problem"]), saved["ticket"])


def advance(
    flight: Flight,
    program: Program,
    ctx: Context,
    setup: Setup,
    params: Params,
    pool: Pool,
    *,
    enough: int,
    version: int,
    timer: Timer,
) -> None:
    """Sample and score until so many groups of the flight are whole; the others stand still.

    Args:
      flight: changed in place.
      program: of all its groups.
      ctx: given to the program.
      setup: of the sampler; its widths hold `programs.limits`.
      params: the sampler's form of the parameters.
      pool: scores completions and asks environments; each process does its share for all.
      enough: groups to wait for, at most those in flight.
      version: policy version of `params`.
      timer: given `sample` and `score` seconds, the latter being what waiting for the pool adds.
    """
    drive = Drive(program, ctx, setup, pool)
    with timer("sample"):
        drive.begin(flight.groups)
    while True:
        with timer("sample"):
            while drive.work and drive.still() < enough:
                drive.chunk(params, version)
        with timer("score"):
            answers = drive.answers()
        with timer("sample"):
            drive.receive(answers)
        whole = sum(group.rows is not None for group in flight.groups)
        if whole >= enough or not (drive.work or drive.asked):
            break
    drive.put_out()


Asked = tuple[int, Place, int]
"""Names what a program has asked for: its group, its part, and what that had received."""


class Drive:
    """Programs over one sampler, chunk by chunk. All that they received is in their groups."""

    def __init__(
        self,
        program: Program,
        ctx: Context,
        setup: Setup,
        pool: Pool,
        known: Mapping[Asked, Future[Answer]] = MappingProxyType({}),
    ) -> None:
        """Args: see `advance`; `known` has what was asked for before and is not to be asked again.

        A group has its answer from there, or is asked for again where it is not.
        """
        self._program, self._ctx, self._pool, self._known = program, ctx, pool, known
        self.setup, self.work = setup, Work()
        self.asked: dict[int, tuple[Asked, Future[Answer] | None]] = {}
        """Answers that programs wait for, by number in the order of asking; None: another process
        has it."""
        self._groups: list[Group] = []
        self._sampling: dict[int, _Wants] = {}
        self._asking: dict[int, _Wants] = {}
        self._count = 0

    def begin(self, groups: Sequence[Group]) -> None:
        """Run the programs of groups, from where their logs end."""
        self._groups += groups
        nodes = [
            _Node(self._program(self._ctx, group.drawn.problem, group.first_id), group, ())
            for group in groups
            if group.rows is None
        ]
        self._want([(node, None) for node in nodes])

    def chunk(self, params: Params, version: int) -> None:
        """Decode one chunk; programs go on with the completions that have ended."""
        for completion in sampler.advance(self.setup, params, self.work, version=version):
            each = self._sampling.pop(completion.request.id)
            each.node.group.begun.pop(each.node.place, None)
            original = dataclasses.replace(completion, request=each.wanted.request)
            self._want([(each.node, _log(each.node, original))])

    @property
    def sequences(self) -> int:
        """Sequences under way, those that wait for a slot included."""
        return len(self._sampling)

    @property
    def context(self) -> int:
        """Tokens that the slots remember."""
        return sum(seat.length for seat in self.work.seats if seat is not None)

    def still(self) -> int:
        """Groups of which nothing is being sampled."""
        busy = {each.node.group.first_id for each in self._sampling.values()}
        return sum(group.first_id not in busy for group in self._groups)

    def answers(self, numbers: Collection[int] | None = None) -> dict[int, Answer]:
        """Answers by number, waited for, on every process; None: to all that has been asked."""
        if numbers is not None and not numbers:
            return {}
        return results(
            {
                n: future
                for n, (_, future) in self.asked.items()
                if future is not None and (numbers is None or n in numbers)
            }
        )

    def receive(self, answers: Mapping[int, Answer]) -> None:
        """Programs go on with their answers, together and in the order of asking."""
        settled = [(self._asking.pop(n), answers[n]) for n in sorted(answers)]
        for n in answers:
            del self.asked[n]
        self._want([(each.node, _log(each.node, answer)) for each, answer in settled])

    def put_out(self) -> None:
        """Note in the groups how far what is being sampled has come. Nothing goes on after it."""
        for completion in sampler.unfinished(self.setup, self.work):
            each = self._sampling[completion.request.id]
            each.node.group.begun[each.node.place] = completion

    def _want(self, nodes_and_values: Sequence[tuple[_Node, Any]]) -> None:
        """Resume nodes with their values, and ask for what they want next."""
        wanted = [each for node, value in nodes_and_values for each in _resume(node, value)]
        submitted = []
        for each in wanted:
            if isinstance(each.wanted, Grade | Act):
                name = (each.node.group.first_id, each.node.place, each.node.received)
                future = self._known.get(name) or _submit(self._count, self._pool, each.wanted)
                self.asked[self._count], self._asking[self._count] = (name, future), each
                self._count += 1
            else:
                request = _request(each)
                self._sampling[request.id] = each
                submitted.append(request)
        if submitted:
            sampler.submit(self.setup, self.work, submitted)


def take(flight: Flight, count: int) -> list[Group]:
    """The first `count` whole groups, oldest first; they leave the flight."""
    whole = [group for group in flight.groups if group.rows is not None][:count]
    taken = {group.first_id for group in whole}
    flight.groups = [group for group in flight.groups if group.first_id not in taken]
    return whole


def results(futures: dict[int, Future[Answer]]) -> dict[int, Answer]:
    """What all processes' shares were answered, on every process."""
    own = {n: future.result() for n, future in futures.items()}
    return functools.reduce(operator.or_, distributed.gathered(own)) if own or _several() else {}


def _several() -> bool:
    return jax.process_count() > 1


def _submit(n: int, pool: Pool, wanted: Grade | Act) -> Future[Answer] | None:
    """Have a text scored or an environment asked, if it falls to this process's share."""
    if n % jax.process_count() != jax.process_index():
        return None
    if isinstance(wanted, Act):
        return pool.act(wanted.turn)
    return pool.submit(wanted.problem, wanted.text)


def _request(each: _Wants) -> Request:
    """What to sample, from where it stands."""
    begun = each.node.group.begun.get(each.node.place)
    return each.wanted.request if begun is None else resume(begun)


def _log(node: _Node, result: Result) -> Result:
    node.group.log.setdefault(node.place, []).append(result)
    node.received += 1
    return result


def _resume(node: _Node, value: Any) -> list[_Wants]:
    """Run a node on with a value, through what its log answers; what it and others then want."""
    while True:
        try:
            wanted = node.program.send(value)
        except StopIteration as stop:
            parent = node.parent
            if parent is None:
                node.group.rows = list(stop.value)
                node.group.log, node.group.begun = {}, {}
                return []
            parent.returned[node.place[-1]] = stop.value
            parent.left -= 1
            if parent.left:
                return []
            node, value = parent, parent.returned
            continue
        if isinstance(wanted, Fork):
            if not wanted.programs:
                value = []
                continue
            node.returned, node.left = [None] * len(wanted.programs), len(wanted.programs)
            node.forks += 1
            parts = [
                _Node(program, node.group, (*node.place, node.forks - 1, i), node)
                for i, program in enumerate(wanted.programs)
            ]
            return [each for part in parts for each in _resume(part, None)]
        logged = node.group.log.get(node.place, [])
        if node.received < len(logged):
            value = logged[node.received]
            node.received += 1
            continue
        return [_Wants(node, wanted)]
