"""Episodes that branch where a tool's result leaves the policy unsure, from a budget of rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator
from typing import Any

import numpy as np

from jaxrl.config import Config
from jaxrl.data.types import Problem, Score
from jaxrl.random_streams import GroupStream
from jaxrl.rollout import episodes, programs, tasks
from jaxrl.rollout.programs import Context, Fork, Program, Row, Sample, Wanted
from jaxrl.run.extension import Extension
from jaxrl.types import Completion, Request, Source


@dataclasses.dataclass(frozen=True)
class BranchingConfig:
    """How a group's rows are divided, and where episodes branch. Entropies are shares of log V."""

    fresh: float | None = None
    """Share of a group's rows that begin anew, the others being branches; None: by the entropies
    of its first row (AEPO)."""
    beta: float = 4.0
    """How much a row more or less begins anew for the entropy of the first turn above that of the
    turns after results."""
    probability: float = 0.5
    """Of a branch at a turn whose entropy is that of the first turn."""
    weight: float = 1.0
    """What a rise of the entropy over the first turn's adds to it."""
    penalty: float = 0.3
    """Part of it that each branch at the turns right before takes away; 0: none (ARPO)."""
    tokens: int = 20
    """Tokens of a turn, its first, that its entropy is the mean of."""


def branching(settings: BranchingConfig) -> Extension:
    """AEPO's rollout: some rows of a group begin anew, and others leave an earlier one midway.

    A branch shares all turns and results before its own, has the same environment, and may have
    branches itself. Rows that no branch takes begin anew, too.

    Paper: Dong et al. 2025, "Agentic Entropy-Balanced Policy Optimization"; with `fresh`, and
    without a penalty, Dong et al. 2025, "Agentic Reinforced Policy Optimization"
    """

    def check(config: Config) -> None:
        shares = {"probability": settings.probability, "penalty": settings.penalty}
        shares |= {} if settings.fresh is None else {"fresh": settings.fresh}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ValueError(f"branching.{name}={value} is no share from 0 to 1")
        if settings.tokens < 1:
            raise ValueError(f"branching.tokens={settings.tokens}: count one token or more")
        tasks.require_turns(config, "branching")
        if config.rollout.on_device:
            raise ValueError(
                "branching with rollout.on_device: episodes within the decode loop have no "
                "branches; set it to False"
            )

    return Extension(
        check=check, program=lambda program: branched(settings), provides={"plays_turns": True}
    )


@dataclasses.dataclass
class Path:
    """A row that others may leave."""

    entropies: list[float]
    """Of its turns."""
    before: int = 0
    """Branches at its last turns, one after another; a branch has those of the row that it left."""


def branched(settings: BranchingConfig) -> Program:
    """A group of fresh episodes, and branches of these and of one another.

    Branches are found turn by turn, in all rows at each, as if the rows were played side by side;
    a row's later turns, which are there already, decide nothing before their time.
    """

    def program(ctx: Context, problem: Problem, first_id: int) -> Generator[Wanted, Any, list[Row]]:
        requests = programs.requests(ctx, problem, first_id)
        seed = int(ctx.rng(first_id, GroupStream.ENVIRONMENTS).integers(1 << 31))
        rng, size = ctx.rng(first_id, GroupStream.BRANCHES), len(requests)
        most = math.log(ctx.tokenizer.vocab_size)

        def entropies(row: Row) -> list[float]:
            return [entropy / most for entropy in turn_entropies(row.completion, settings.tokens)]

        rows: list[Row] = yield Fork([episodes.episode(ctx, problem, requests[0], seed)])
        count = fresh_rows(settings, size, entropies(rows[0]))
        fresh = [episodes.episode(ctx, problem, request, seed) for request in requests[1:count]]
        if fresh:
            rows += yield Fork(fresh)
        paths, turn = [Path(entropies(row)) for row in rows], 2
        while len(rows) < size and turn <= max(len(path.entropies) for path in paths):
            parent_rows = branches(settings, paths, turn, size - len(rows), rng)
            plays = [
                after(ctx, episodes.episode(ctx, problem, request, seed), rows[row], turn)
                for request, row in zip(requests[len(rows) :], parent_rows, strict=False)
            ]
            if plays:
                rows += yield Fork(plays)
                new = rows[-len(plays) :]
                paths += [
                    Path(entropies(row), paths[left].before)
                    for row, left in zip(new, parent_rows, strict=True)
                ]
            turn += 1
        rest = [episodes.episode(ctx, problem, request, seed) for request in requests[len(rows) :]]
        return [*rows, *(yield Fork(rest))] if rest else rows

    return program


def turn_entropies(completion: Completion, tokens: int) -> list[float]:
    """Of each turn of an episode, the mean entropy of its first tokens, in nats.

    None of an episode whose context was replaced, where turns do not follow one another.
    """
    if completion.parent is not None or completion.turn is None or completion.source is None:
        return []
    policy_turns = np.where(completion.source == Source.POLICY, completion.turn, 0)
    last = int(policy_turns.max(initial=0))
    return [
        float(completion.entropy[policy_turns == k][:tokens].mean()) for k in range(1, last + 1)
    ]


def fresh_rows(settings: BranchingConfig, size: int, entropies: list[float]) -> int:
    """How many of a group's rows begin anew, at least one.

    `size sigmoid(beta (H_root - H_tool))`, with the entropy of the first turn and the mean of the
    others; of an episode of one turn, all.

    Args:
      settings: of the extension.
      size: rows of the group.
      entropies: of the turns of its first row.
    """
    share = settings.fresh
    if share is None:
        if len(entropies) < 2:
            return size
        rise = float(np.mean(entropies[1:])) - entropies[0]
        share = 1 / (1 + math.exp(settings.beta * rise))
    return min(size, max(1, round(size * share)))


def probability(settings: BranchingConfig, rise: float, before: int) -> float:
    """Of a branch: `min(1, max(0, p + w rise)) max(0, 1 - penalty l)`.

    Args:
      settings: of the extension.
      rise: of the entropy over the first turn's.
      before: l, branches at the turns right before.
    """
    plain = min(1.0, max(0.0, settings.probability + settings.weight * rise))
    return plain * max(0.0, 1.0 - settings.penalty * before)


def branches(
    settings: BranchingConfig,
    paths: list[Path],
    turn: int,
    count: int,
    rng: np.random.Generator,
) -> list[int]:
    """The rows that others leave before a turn, at most `count`; `before` of all is renewed.

    Args:
      settings: of the extension.
      paths: of the rows so far.
      turn: from 2.
      count: rows that are left.
      rng: draws.
    """
    parent_rows: list[int] = []
    for row, path in enumerate(paths):
        if turn > len(path.entropies) or len(parent_rows) == count:
            continue
        rise = path.entropies[turn - 1] - path.entropies[0]
        starts_branch = rng.random() < probability(settings, rise, path.before)
        path.before = path.before + 1 if starts_branch else 0
        if starts_branch:
            parent_rows.append(row)
    return parent_rows


def after(
    ctx: Context, play: Generator[Wanted, Any, Row], earlier: Row, turn: int
) -> Generator[Wanted, Any, Row]:
    """An episode whose turns before `turn` are those of an earlier one.

    It is void if its environment answers otherwise before that turn than it did then: the earlier
    turns were sampled after other observations.

    Args:
      ctx: of both.
      play: the episode.
      earlier: the row that it leaves.
      turn: the first turn of its own, from 2.
    """
    completion = earlier.completion
    policy_turns = np.where(completion.source == Source.POLICY, completion.turn, 0)
    number, operation = 0, next(play)
    try:
        while True:
            if isinstance(operation, Sample) and number < turn:
                number += 1
                places = np.flatnonzero(policy_turns == number)
                if not _continues(operation.request, completion, int(places[0])):
                    return _void(ctx, earlier, operation.request, number)
                if number < turn:
                    operation = play.send(
                        _until(completion, operation.request, int(places[-1]) + 1)
                    )
                    continue
            operation = play.send((yield operation))
    except StopIteration as ended:
        row: Row = ended.value
    if number < turn and row.score.error is None:
        return _void(ctx, earlier, row.completion.request, number + 1)
    return row


def _continues(request: Request, earlier: Completion, start: int) -> bool:
    """Whether a request reads the prompt and the first `start` tokens of a completion."""
    done = () if request.prefix is None else request.prefix.tokens
    same = np.array_equal(done, earlier.tokens[:start])
    return same and request.prompt == earlier.request.prompt


def _until(earlier: Completion, request: Request, end: int) -> Completion:
    """The first `end` tokens of a completion, as that of a request."""
    arrays = (getattr(earlier, name)[:end] for name in ("tokens", "logp", "entropy", "version"))
    support = None if earlier.support is None else earlier.support[:end]
    return Completion(request, *arrays, True, earlier.source[:end], support=support)


def _void(ctx: Context, earlier: Row, request: Request, turn: int) -> Row:
    """The turns of a row before `turn`, as a branch whose environment answered otherwise then."""
    completion, count = earlier.completion, turn - 1
    positions = np.flatnonzero((completion.source == Source.POLICY) & (completion.turn <= count))
    end = int(positions[-1]) + 1 if len(positions) else 0
    request = dataclasses.replace(request, prompt=completion.request.prompt, prefix=None)
    prefix_completion = dataclasses.replace(
        _until(completion, request, end),
        stopped=False,
        turn=completion.turn[:end],
        turn_rewards=completion.turn_rewards[:count],
        turn_agents=completion.turn_agents[:count],
        turn_reads=completion.turn_reads[:count],
    )
    error = (
        f"branch: what the environment says before turn {turn} is not what it said to the episode "
        "that this branch leaves; branching needs an environment whose answers follow from the "
        "problem, the seed and the actions"
    )
    return Row(
        prefix_completion,
        ctx.tokenizer.decode(prefix_completion.tokens.tolist()),
        Score(None, error=error),
    )
