"""Runs rollout programs over one sampler under one set of weights, chunk by chunk.

A program first receives the results in its group's log, in order, and then requests new ones. While
an environment answers, the sequence keeps its slot, so that its KV cache is used again. If another
sequence needs the slot, the slot is given up, and the sequence is prefilled again when it
continues.

A group is one run of a program. Its log holds every result that the program received, by place (the
path of forks that leads to it) and in order. A sequence that is unfinished when a step has what it
needs continues in a later step under newer weights; each token keeps the log-probability and the
policy version that it was sampled with (partial rollouts: Kimi k1.5, 2025; APRIL, 2025).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from jaxrl.data.environments import Opening, Reply
from jaxrl.data.scoring.pool import Pool
from jaxrl.data.types import Score
from jaxrl.mesh import distributed
from jaxrl.record.metrics import Timer
from jaxrl.rollout.engine import Engine
from jaxrl.rollout.programs import Act, Context, Fork, Grade, Program, Row, Sample
from jaxrl.rollout.selection import Drawn
from jaxrl.sampling.requests import resume
from jaxrl.types import Completion, Request

Place = tuple[int, ...]
Answer = Score | Opening | Reply
Pending = Future[Score] | Future[Opening | Reply]
Result = Completion | Answer
RequestId = tuple[int, Place, int]
"""Id of a request: its group, its branch, and the number of results received before it."""


@dataclasses.dataclass
class Group:
    """A problem and everything sampled for it so far."""

    drawn: Drawn
    first_id: int
    """Id of its first row; names its random streams."""
    log: dict[Place, list[Result]] = dataclasses.field(default_factory=dict)
    """What each part of its program received, in order."""
    partial: dict[Place, Completion] = dataclasses.field(default_factory=dict)
    """Sequences in progress."""
    rows: list[Row] | None = None
    """What the program returned; None until it has."""

    @property
    def finished_rows(self) -> list[Row]:
        """The rows of a group whose program has returned."""
        assert self.rows is not None
        return self.rows


@dataclasses.dataclass
class OpenGroups:
    """The groups that are sampled for this step and later ones, oldest first."""

    groups: list[Group] = dataclasses.field(default_factory=list)
    waiting: list[Drawn] = dataclasses.field(default_factory=list)
    """Problems that have been drawn but not started."""
    next_id: int = 0
    """Id of the next group's first row."""

    def admit(self, count: int, size: int) -> None:
        """Start groups of `size` rows for the next `count` of the waiting problems."""
        for sample in self.waiting[:count]:
            self.groups.append(Group(sample, self.next_id))
            self.next_id += size
        del self.waiting[:count]

    def abandon(self) -> None:
        """Discard what has been sampled; these problems are the next to be started."""
        self.waiting = [group.drawn for group in self.groups] + self.waiting
        self.groups = []


class Chunk(NamedTuple):
    """Counts and time of one chunk of decoding."""

    sequences: int
    """Sequences in progress at its start, including those that waited for a slot."""
    context: int
    """Tokens in the KV caches at its end."""
    steps: int
    """Decoding steps."""
    tokens: int
    """Tokens sampled."""
    read: int
    """Tokens prefilled for it, of prompts and of sequences that continue."""
    passes: int
    """Passes of the prefill that read them."""
    positions: int
    """Positions that these computed, padding included."""
    seconds: float
    verified: int = 0
    """Drafts that passes over the model verified."""
    accepted: int = 0
    """Tokens of these that were accepted."""
    cached: int = 0
    """Tokens of prompts that were not prefilled, as the prefix cache had them."""
    verified_beside: int = 0
    """Drafts verified that were found in completions of the same prompt."""
    accepted_beside: int = 0
    """Tokens of these that were accepted."""


@dataclasses.dataclass
class _Node:
    """A running program, or a branch of one that a fork started."""

    program: Generator[Any, Any, Any]
    group: Group
    place: Place
    parent: _Node | None = None
    received: int = 0
    forks: int = 0
    returned: list[Any] = dataclasses.field(default_factory=list)
    left: int = 0


class _PendingRequest(NamedTuple):
    """A request of a node whose result is pending."""

    node: _Node
    wanted: Sample | Grade | Act


class Drive:
    """Programs over one sampler, chunk by chunk. All that they received is in their groups."""

    def __init__(
        self,
        program: Program,
        ctx: Context,
        engine: Engine,
        pool: Pool,
        pending: Mapping[RequestId, Pending | None] = MappingProxyType({}),
    ) -> None:
        """Nothing has begun.

        Args:
          program: of all groups.
          ctx: given to the program.
          engine: decodes, under weights that stay the same.
          pool: scores completions and asks environments; each process does its share for all.
          pending: that of an earlier drive. A request whose id is in it is not submitted again: an
            environment that was asked again would take a second step.
        """
        self._program, self._ctx, self._pool, self._carried_over = program, ctx, pool, pending
        self.engine, self.early = engine, ctx.rollout.replies == "arrival"
        self.pending: dict[int, tuple[RequestId, Pending | None]] = {}
        """Pending answers, by number in the order of their requests; None: another process
        has it."""
        self._groups: list[Group] = []
        self._sampling: dict[int, tuple[_Node, Request]] = {}
        self._requests: dict[int, _PendingRequest] = {}
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

    @property
    def work(self) -> bool:
        """Whether anything is left to decode."""
        return bool(self.engine)

    def chunk(self, version: int) -> Chunk:
        """Decode one chunk, and resume the programs whose completions have ended."""
        start, sequences = perf_counter(), self.sequences
        done, ended = self.engine.chunk(version), []
        for completion in done.ended:
            node, request = self._sampling.pop(completion.request.id)
            node.group.partial.pop(node.place, None)
            if completion.request is not request:  # it was continued
                completion = dataclasses.replace(completion, request=request)
            ended.append((node, _log(node, completion)))
        self._want(ended)
        seconds = perf_counter() - start
        counts = {name: count for name, count in done._asdict().items() if name != "ended"}
        return Chunk(sequences=sequences, context=self.context, seconds=seconds, **counts)

    @property
    def sequences(self) -> int:
        """Sequences in progress, including those that wait for a slot."""
        return len(self._sampling)

    @property
    def context(self) -> int:
        """Tokens in the KV caches."""
        return self.engine.context

    def count_idle_groups(self) -> int:
        """Number of groups without a sequence in progress."""
        busy = {node.group.first_id for node, _ in self._sampling.values()}
        return sum(group.first_id not in busy for group in self._groups)

    def count_finished_groups(self) -> int:
        """Number of groups whose programs have returned."""
        return sum(group.rows is not None for group in self._groups)

    def answers(self, numbers: Collection[int] | None = None) -> dict[int, Answer]:
        """Wait for answers and return them by number, on every process. None: all pending ones."""
        if numbers is not None and not numbers:
            return {}
        return results(
            {
                n: future
                for n, (_, future) in self.pending.items()
                if future is not None and (numbers is None or n in numbers)
            }
        )

    def ready(self) -> list[int]:
        """Numbers of the answers that have arrived."""
        return [n for n, (_, future) in self.pending.items() if future is None or future.done()]

    def immediate(self) -> list[int]:
        """Numbers of the answers that were there when they were asked for, on every process."""
        return [
            n
            for n, query in self._requests.items()
            if isinstance(query.wanted, Act) and self._pool.plays_here(query.wanted.turn.problem)
        ]

    def wait(self, seconds: float | None = None) -> None:
        """Wait until another answer arrives, for at most `seconds`; None: without limit."""
        left: list[Future[Any]] = [
            future for _, future in self.pending.values() if future and not future.done()
        ]
        wait(left, seconds, FIRST_COMPLETED)

    def receive(self, answers: Mapping[int, Answer]) -> None:
        """Programs continue with their answers, together and in the order of asking."""
        answered_queries = [(self._requests.pop(n), answers[n]) for n in sorted(answers)]
        for n in answers:
            del self.pending[n]
        self._want([(query.node, _log(query.node, answer)) for query, answer in answered_queries])

    def save_partial(self) -> None:
        """Store the sequences in progress in their groups. Nothing is sampled after it."""
        for completion in self.engine.unfinished():
            node, _ = self._sampling[completion.request.id]
            node.group.partial[node.place] = completion

    def _want(self, nodes_and_values: Sequence[tuple[_Node, Any]]) -> None:
        """Resume nodes with their values, and submit what they request next."""
        queries = [query for node, value in nodes_and_values for query in _resume(node, value)]
        if self._ctx.dialogue is not None:
            finished = {g.first_id: g for node, _ in nodes_and_values if (g := node.group).rows}
            for row in (row for group in finished.values() for row in group.finished_rows):
                self._pool.over(row.completion.request.id)
        submitted = []
        for query in queries:
            if isinstance(query.wanted, Grade | Act):
                name = (query.node.group.first_id, query.node.place, query.node.received)
                future = (
                    self._carried_over[name]
                    if name in self._carried_over
                    else _submit(self._count, self._pool, query.wanted)
                )
                self.pending[self._count], self._requests[self._count] = (name, future), query
                self._count += 1
            else:
                node, request = query.node, query.wanted.request
                self._sampling[request.id] = node, request
                partial = node.group.partial.get(node.place)
                submitted.append(request if partial is None else resume(partial))
        self.engine.put(submitted)
        if self._ctx.dialogue is not None:
            acts = (
                query.wanted for query in self._requests.values() if isinstance(query.wanted, Act)
            )
            self.engine.keep({act.turn.episode for act in acts})


def results(futures: Mapping[int, Pending]) -> dict[int, Answer]:
    """The answers of all processes, on every process."""
    local_answers = {n: future.result() for n, future in futures.items()}
    return (
        functools.reduce(operator.or_, distributed.gathered(local_answers))
        if local_answers or is_distributed()
        else {}
    )


def is_distributed() -> bool:
    """Whether the run has several processes."""
    return jax.process_count() > 1


def _submit(n: int, pool: Pool, query: Grade | Act) -> Pending | None:
    """Submit a text for scoring or an action to its environment, if it is this process's share."""
    share = query.turn.episode if isinstance(query, Act) else n  # an episode stays in a process
    if share % jax.process_count() != jax.process_index():
        return None
    if isinstance(query, Act):
        return pool.act(query.turn)
    return pool.submit(query.problem, query.text)


def _log(node: _Node, result: Result) -> Result:
    node.group.log.setdefault(node.place, []).append(result)
    node.received += 1
    return result


def _resume(node: _Node, value: Any) -> list[_PendingRequest]:
    """Resume a node with a value and replay its log; what it and its forks request next."""
    while True:
        try:
            query = node.program.send(value)
        except StopIteration as stop:
            parent = node.parent
            if parent is None:
                node.group.rows = list(stop.value)
                node.group.log, node.group.partial = {}, {}
                return []
            parent.returned[node.place[-1]] = stop.value
            parent.left -= 1
            if parent.left:
                return []
            node, value = parent, parent.returned
            continue
        if isinstance(query, Fork):
            if not query.programs:
                value = []
                continue
            node.returned, node.left = [None] * len(query.programs), len(query.programs)
            node.forks += 1
            parts = [
                _Node(program, node.group, (*node.place, node.forks - 1, i), node)
                for i, program in enumerate(query.programs)
            ]
            return [branch_query for part in parts for branch_query in _resume(part, None)]
        logged = node.group.log.get(node.place, [])
        if node.received < len(logged):
            value = logged[node.received]
            node.received += 1
            continue
        return [_PendingRequest(node, query)]


def advance(
    drive: Drive, *, enough: int, version: int, timer: Timer, log: Callable[[Chunk], None]
) -> None:
    """Sample and score until `enough` groups of a drive are complete.

    Completions take effect in the sampler's order. Scores and replies of environments take effect,
    by `RolloutConfig.replies`:

    - `together`: once nothing is left to sample, or enough groups wait for nothing else. So what
      programs receive does not depend on timing.
    - `together`, of an environment that is computed at once: also before requests that wait would
      take the slots of its episodes.
    - `arrival`: as they come, so that slow environments work while others' turns are sampled.

    Args:
      drive: with groups that have begun.
      enough: groups to wait for, at most those of the drive.
      version: of the engine's weights.
      timer: given the seconds of `sample`, and of `score`: the time spent waiting for the pool.
      log: called with each chunk of decoding.

    Raises:
      ValueError: `rollout.replies` is "arrival" in a run of several processes.
    """
    early = drive.early
    count_ended_groups = drive.count_finished_groups if early else drive.count_idle_groups
    if early and is_distributed():
        raise ValueError(
            "rollout.replies='arrival' needs one process, as processes must agree on an order; "
            "use together"
        )
    while True:
        with timer("sample"):
            while drive.work and count_ended_groups() < enough:
                numbers = list[int]()
                if early:
                    numbers = drive.ready()
                elif drive.engine.crowded:
                    numbers = drive.immediate()
                if answers := drive.answers(numbers):
                    drive.receive(answers)
                log(drive.chunk(version))
        with timer("score"):
            if early and not drive.ready():
                drive.wait()
            answers = drive.answers(drive.ready() if early else None)
        with timer("sample"):
            drive.receive(answers)
        if drive.count_finished_groups() >= enough or not (drive.work or drive.pending):
            return
