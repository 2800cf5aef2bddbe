"""The driver: runs rollout programs over one sampler, and keeps unfinished groups for later steps.

A group is one run of a program. Its log holds every result that the program received, by place (the
path of forks that leads to it) and in order. A sequence that is unfinished when a step has what it
needs continues in a later step under newer weights; each token keeps the log-probability and the
policy version that it was sampled with (partial rollouts: Kimi k1.5, 2025; APRIL, 2025).

A restart runs each program again and gives it the results in its log, so a group continues where it
stood. Completions take effect in the sampler's order. Scores and replies of environments take
effect, by `RolloutConfig.replies`:

- `together`: once nothing is left to sample, or enough groups wait for nothing else. So what
  programs receive does not depend on timing.
- `together`, of an environment that is computed at once: also before requests that wait would take
  the slots of its episodes.
- `arrival`: as they come, so that slow environments work while others' turns are sampled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl.data.scoring.pool import Pool
from jaxrl.record.metrics import Timer
from jaxrl.rollout import state
from jaxrl.rollout.drive import Chunk, Drive, Group, Pending, RequestId, is_distributed
from jaxrl.rollout.engine import Engine
from jaxrl.rollout.programs import Context, Program, Row
from jaxrl.rollout.selection import Drawn


@dataclasses.dataclass
class OpenGroups:
    """The groups that are sampled for this step and later ones, oldest first."""

    groups: list[Group] = dataclasses.field(default_factory=list)
    waiting: list[Drawn] = dataclasses.field(default_factory=list)
    """Problems that have been drawn but not started."""
    next_id: int = 0
    """Id of the next group's first row."""
    pending: dict[RequestId, Pending | None] = dataclasses.field(
        default_factory=dict, compare=False
    )
    """Answers that were pending when the last step ended. The next one waits for them: an
    environment that was asked again would take a second step. Not saved, as a restart asks anew."""


def admit(open_groups: OpenGroups, count: int, size: int) -> None:
    """Start groups of `size` rows for the next `count` of the waiting problems."""
    for sample in open_groups.waiting[:count]:
        open_groups.groups.append(Group(sample, open_groups.next_id))
        open_groups.next_id += size
    del open_groups.waiting[:count]


def abandon(open_groups: OpenGroups) -> None:
    """Discard what has been sampled; these problems are the next to be started."""
    open_groups.waiting = [group.drawn for group in open_groups.groups] + open_groups.waiting
    open_groups.groups, open_groups.pending = [], {}


def to_state(open_groups: OpenGroups) -> dict[str, Any]:
    """The open groups as JSON values and arrays, for a checkpoint."""
    return {
        "next_id": open_groups.next_id,
        "waiting": [_plain(sample) for sample in open_groups.waiting],
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
    open_groups = OpenGroups([], [_drawn(entry) for entry in saved["waiting"]], saved["next_id"])
    for group_state in saved["groups"]:
        rows = state.from_state(group_state["rows"])
        open_groups.groups.append(
            Group(
                _drawn(group_state["drawn"]),
                group_state["first_id"],
                dict(state.from_state(group_state["log"])),
                dict(state.from_state(group_state["partial"])),
                rows and [Row(*row) for row in rows],
            )
        )
    return open_groups


def _plain(sample: Drawn) -> dict[str, Any]:
    return {"problem": state.to_state(sample.problem), "ticket": sample.ticket}


def _drawn(saved: dict[str, Any]) -> Drawn:
    return Drawn(state.from_state(saved["problem"]), saved["ticket"])


def advance(
    open_groups: OpenGroups,
    program: Program,
    ctx: Context,
    engine: Engine,
    pool: Pool,
    *,
    enough: int,
    version: int,
    timer: Timer,
    log: Callable[[Chunk], None],
) -> None:
    """Sample and score until `enough` open groups are complete; the others are paused.

    Args:
      open_groups: changed in place.
      program: of all its groups.
      ctx: given to the program.
      engine: decodes, under the weights of `version`.
      pool: scores completions and asks environments; each process does its share for all.
      enough: groups to wait for, at most those that are open.
      version: policy version of `params`.
      timer: given the seconds of `sample`, and of `score`: the time spent waiting for the pool.
      log: called with each chunk of decoding.

    Raises:
      ValueError: `rollout.replies` is "arrival" in a run of several processes.
    """
    early = ctx.rollout.replies == "arrival"
    if early and is_distributed():
        raise ValueError(
            "rollout.replies='arrival' needs one process, as processes must agree on an order; "
            "use together"
        )
    drive = Drive(program, ctx, engine, pool, open_groups.pending)

    def count_finished() -> int:
        return sum(group.rows is not None for group in open_groups.groups)

    with timer("sample"):
        drive.begin(open_groups.groups)
    while True:
        with timer("sample"):
            while (
                drive.work and (count_finished() if early else drive.count_idle_groups()) < enough
            ):
                numbers = list[int]()
                if early:
                    numbers = drive.ready()
                elif engine.crowded:
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
        if count_finished() >= enough or not (drive.work or drive.pending):
            break
    drive.save_partial()
    open_groups.pending = dict(drive.pending.values())
