"""The driver: runs rollout programs over one sampler, and keeps what a step does not wait for.

A group is one run of a program. Its log holds every result that the program received, by place (the
path of forks that leads to it) and in order. A sequence that is unfinished when a step has what it
needs goes on in a later step under newer weights; each token keeps the log-probability and the
policy version that it was sampled with (partial rollouts: Kimi k1.5, 2025; APRIL, 2025).

A restart runs each program again and gives it the results in its log, so a group continues where it
stood. What programs receive does not depend on timing: completions arrive in the sampler's order,
and scores and replies of environments take effect together, once nothing is left to sample or
enough groups wait for nothing else. With `RolloutConfig.replies` "arrival" they take effect as they
come, which lets slow environments work while others' turns are sampled.

A sequence that an environment answers to stays in its slot, and what was read of it is not read
again, unless another needs the slot. It never keeps others waiting.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
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
    partial: dict[Place, Completion] = dataclasses.field(default_factory=dict)
    """Sequences in progress."""
    rows: list[Row] | None = None
    """What the program returned; None until it has."""


@dataclasses.dataclass
class OpenGroups:
    """The groups that are sampled for this step and later ones, oldest first."""

    groups: list[Group] = dataclasses.field(default_factory=list)
    waiting: list[Drawn] = dataclasses.field(default_factory=list)
    """Problems that have been drawn but not started."""
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


def admit(open_groups: OpenGroups, count: int, size: int) -> None:
    """Begin groups of `size` rows for the next `count` of the problems that wait."""
    for drawn in open_groups.waiting[:count]:
        open_groups.groups.append(Group(drawn, open_groups.next_id))
        open_groups.next_id += size
    del open_groups.waiting[:count]


def abandon(open_groups: OpenGroups) -> None:
    """Discard what has been sampled; these problems are the next to be started."""
    open_groups.waiting = [group.drawn for group in open_groups.groups] + open_groups.waiting
    open_groups.groups = []


def to_state(open_groups: OpenGroups) -> dict[str, Any]:
    """The open groups as JSON values and arrays, for a checkpoint."""
    return {
        "next_id": open_groups.next_id,
        "waiting": [_plain(drawn) for drawn in open_groups.waiting],
        "groups": [
            {
                "drawn": _plain(group.drawn),
                "first_id": group.first_id,
                "log": state.to_state(list(group.log.items())),
                "partial": state.to_state(list(group.partial.items())),
                "rows": state.to_state(group.rows and [tuple(row) for row in group.rows]),
            }
            for group in open_groups.groups
        ],
    }


def from_state(saved: dict[str, Any]) -> OpenGroups:
    """The open groups that `to_state` was given."""
    open_groups = OpenGroups([], [_drawn(each) for each in saved["waiting"]], saved["next_id"])
    for each in saved["groups"]:
        rows = state.from_state(each["rows"])
        open_groups.groups.append(
            Group(
                _drawn(each["drawn"]),
                each["first_id"],
                dict(state.from_state(each["log"])),
                dict(state.from_state(each["partial"])),
                rows and [Row(*row) for row in rows],
            )
        )
    return open_groups


def _plain(drawn: Drawn) -> dict[str, Any]:
    return {"problem": state.to_state(drawn.problem), "ticket": drawn.ticket}


def _drawn(saved: dict[str, Any]) -> Drawn:
    return Drawn(state.from_state(saved["problem"]), saved["ticket"])


def advance(
    open_groups: OpenGroups,
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
    """Sample and score until `enough` open groups are complete; the others are paused.

    Args:
      open_groups: changed in place.
      program: of all its groups.
      ctx: given to the program.
      setup: of the sampler; its widths hold `programs.limits`.
      params: the sampler's form of the parameters.
      pool: scores completions and asks environments; each process does its share for all.
      enough: groups to wait for, at most those in flight.
      version: policy version of `params`.
      timer: given `sample` and `score` seconds, the latter being what waiting for the pool adds.

    Raises:
      ValueError: replies shall take effect as they come, in a run of several processes.
    """
    sampling: dict[int, _Wants] = {}
    asking: dict[int, _Wants] = {}
    numbers, early = itertools.count(), ctx.rollout.replies == "arrival"
    if early and _several():
        raise ValueError(
            "rollout.replies='arrival' needs one process, as processes must agree on an order; "
            "use together"
        )
    nodes = [
        _Node(program(ctx, group.drawn.problem, group.first_id), group, ())
        for group in open_groups.groups
        if group.rows is None
    ]
    work = Work()

    def want(nodes_and_values: Sequence[tuple[_Node, Any]]) -> None:
        """Resume nodes with their values, and ask for what they want next."""
        wanted = [each for node, value in nodes_and_values for each in _resume(node, value)]
        submitted = []
        for each in wanted:
            if isinstance(each.wanted, Grade | Act):
                n = next(numbers)
                asking[n] = each
                _submit(futures, n, pool, each.wanted)
            else:
                request = _request(each)
                sampling[request.id] = each
                submitted.append(request)
        waiting = sampler.held(work)
        sampler.continue_held(setup, params, work, [r for r in submitted if r.id in waiting])
        if new := [r for r in submitted if r.id not in waiting]:
            sampler.submit(setup, work, new)
        acts = (each.wanted for each in asking.values() if isinstance(each.wanted, Act))
        asked = {act.turn.episode for act in acts}
        sampler.release(work, [name for name in sampler.held(work) if name not in asked])

    def settle(answers: dict[int, Answer]) -> None:
        settled = [(asking.pop(n), answer) for n, answer in sorted(answers.items())]
        want([(each.node, _log(each.node, answer)) for each, answer in settled])

    def whole() -> int:
        return sum(group.rows is not None for group in open_groups.groups)

    futures: dict[int, Future[Answer]] = {}
    with timer("sample"):
        want([(node, None) for node in nodes])
    while True:
        with timer("sample"):
            while work and (whole() if early else _sampled(open_groups, sampling)) < enough:
                if early and (answers := results(_taken(futures, early))):
                    settle(answers)
                sampler.release_for_queue(setup, work)
                ended = []
                for completion in sampler.advance(setup, params, work, version=version):
                    each = sampling.pop(completion.request.id)
                    each.node.group.partial.pop(each.node.place, None)
                    original = dataclasses.replace(completion, request=each.wanted.request)
                    ended.append((each.node, _log(each.node, original)))
                want(ended)
        with timer("score"):
            if early:
                wait(futures.values(), return_when=FIRST_COMPLETED)
            answers = results(_taken(futures, early))
        with timer("sample"):
            settle(answers)
        if whole() >= enough or not (work or asking):
            break
    for completion in sampler.unfinished(setup, work):
        each = sampling[completion.request.id]
        each.node.group.partial[each.node.place] = completion


def take(open_groups: OpenGroups, count: int) -> list[Group]:
    """The first `count` complete groups, oldest first; they are no longer open."""
    whole = [group for group in open_groups.groups if group.rows is not None][:count]
    taken = {group.first_id for group in whole}
    open_groups.groups = [group for group in open_groups.groups if group.first_id not in taken]
    return whole


def results(futures: dict[int, Future[Answer]]) -> dict[int, Answer]:
    """What all processes' shares were answered, on every process."""
    own = {n: future.result() for n, future in futures.items()}
    return functools.reduce(operator.or_, distributed.gathered(own)) if own or _several() else {}


def _taken(futures: dict[int, Future[Answer]], early: bool) -> dict[int, Future[Answer]]:
    """All futures, or those that are done, taken out."""
    chosen = [n for n, future in futures.items() if not early or future.done()]
    return {n: futures.pop(n) for n in chosen}


def _several() -> bool:
    return jax.process_count() > 1


def _submit(futures: dict[int, Future[Answer]], n: int, pool: Pool, wanted: Grade | Act) -> None:
    """Have a text scored or an environment asked, if it falls to this process's share."""
    if n % jax.process_count() != jax.process_index():
        return
    if isinstance(wanted, Act):
        futures[n] = pool.act(wanted.turn)
    else:
        futures[n] = pool.submit(wanted.problem, wanted.text)


def _sampled(open_groups: OpenGroups, sampling: dict[int, _Wants]) -> int:
    """Groups of which nothing is being sampled."""
    busy = {each.node.group.first_id for each in sampling.values()}
    return sum(group.first_id not in busy for group in open_groups.groups)


def _request(each: _Wants) -> Request:
    """What to sample, from where it stands."""
    partial = each.node.group.partial.get(each.node.place)
    return each.wanted.request if partial is None else resume(partial)


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
                node.group.log, node.group.partial = {}, {}
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
