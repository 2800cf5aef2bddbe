"""Corrected thoughts: what a policy should have thought, as supervised rows beside its episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxrl import functions
from jaxrl.config import Config
from jaxrl.extensions.critic import require_before_critic
from jaxrl.extensions.replay import empty, joined
from jaxrl.rollout import tasks
from jaxrl.run.extension import Context, Extension, with_expert_logp
from jaxrl.types import TrainState, Trajectory

_GIVEN = {"context", "thought"}


@dataclasses.dataclass(frozen=True)
class CorrectorConfig:
    """What corrects thoughts, and which corrected ones are imitated."""

    correct: str = ""
    """Function, as module:function, that is given `context`, the text before a thought, and
    `thought`, and gives the thought that should stand there; an empty text: none is known."""
    args: dict[str, float] = dataclasses.field(default_factory=dict)
    """Its keyword arguments."""
    groups: int = 4
    """Groups of corrected thoughts added to each batch, of `rollout.group_size` rows each."""
    aggregate: bool = True
    """Draw them from the corrected thoughts of all steps so far (DAgger), not of this one alone."""
    size: int = 4096
    """Corrected thoughts that are kept, the newest."""
    end: str = "</think>"
    """What ends a thought, which is the start of a turn."""
    reinforce: bool = False
    """Leave the policy's own thoughts among its actions, as without a corrector."""


def corrector(settings: CorrectorConfig) -> Extension:
    """GTR: one thought of each episode is corrected; thoughts are imitated and actions reinforced.

    The policy's own thoughts are no actions of its episodes. The objective sees a corrected
    thought as an expert's row, so it needs one that imitates those, such as `chord`. It has no
    reward, so it is in no statistic of rewards and advantages, and a critic learns nothing from it.

    Paper: Wei et al. 2025, "GTR: Guided Thought Reinforcement Prevents Thought Collapse in RL-based
    VLM Agent Training"
    """
    corrections: list[dict[str, np.ndarray]] = []

    def check(config: Config) -> None:
        if not settings.correct:
            raise ValueError(
                "corrector.correct is empty: name a function with --corrector.correct "
                "module:function, such as jaxrl.launch.recipes.game_agents.gtr:corrected"
            )
        functions.resolve(settings.correct, settings.args, _GIVEN)
        tasks.require_turns(config, "corrector", of_all=False)
        require_before_critic(config, "corrector")
        if settings.groups < 1 or settings.groups % config.updates_per_batch:
            raise ValueError(
                f"corrector.groups={settings.groups} with updates_per_batch="
                f"{config.updates_per_batch}: use a positive multiple of it"
            )

    def prepare(ctx: Context, state: TrainState, batch: Trajectory) -> Trajectory:
        nonlocal corrections
        rng = np.random.default_rng([ctx.config.seed, int(state.step)])
        tokenizer = ctx.policy.tokenizer
        function = functions.resolve(settings.correct, settings.args, _GIVEN)

        def correct(context: str, thought: str) -> Sequence[int]:
            arguments = {"context": context, "thought": thought}
            text = functions.call(function, settings.args, arguments)
            return tokenizer.encode(text) if text else ()

        thoughts = list(found(batch, tokenizer.decode, settings.end))
        new = corrected(batch, thoughts, correct, tokenizer.decode, rng)
        corrections = [*corrections, *new][-settings.size :]
        size, source = ctx.config.rollout.group_size, corrections if settings.aggregate else new
        indices = rng.integers(len(source), size=(settings.groups, size)) if source else ()
        groups = [_together([source[i] for i in group]) for group in indices]
        policy_batch = without(batch, () if settings.reinforce else thoughts)
        full_batch = joined(policy_batch, groups, settings.groups, size)
        added = np.arange(len(full_batch.tokens)) >= len(policy_batch.tokens)
        return with_expert_logp(ctx, state, full_batch, full_batch.expert & added)

    def set_state(state: list[dict[str, np.ndarray]]) -> None:
        nonlocal corrections
        corrections = list(map(_continued, state))  # older runs saved wrong parents

    return Extension(
        check=check, prepare=prepare, get_state=lambda: corrections, set_state=set_state
    )


def found(
    batch: Trajectory, decode: Callable[[Sequence[int]], str], end: str
) -> Iterator[tuple[int, int, int]]:
    """The thoughts of valid episodes: (row, its first token, the token after its last).

    Args:
      batch: episodes, with their `turn`.
      decode: tokens to text.
      end: what ends a thought; a turn without it has none.
    """
    turn = np.where(batch.action_mask & batch.valid[:, None], batch.extra["turn"], 0)
    for n, row in enumerate(turn):
        for k in np.unique(row[row > 0]):
            positions = np.flatnonzero(row == k)
            for count in range(1, len(positions) + 1):
                if end in decode(batch.tokens[n, positions[:count]].tolist()):
                    yield n, int(positions[0]), int(positions[count - 1]) + 1
                    break


def corrected(
    batch: Trajectory,
    thoughts: Sequence[tuple[int, int, int]],
    correct: Callable[[str, str], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
    rng: np.random.Generator,
) -> list[dict[str, np.ndarray]]:
    """One thought of each episode, drawn at random, as it should have been.

    Args:
      batch: the episodes.
      thoughts: from `found`.
      correct: `(the context, thought) -> tokens`; none where it knows no better.
      decode: tokens to text.
      rng: draws.

    Returns:
      Rows as arrays by name, of the context and the corrected thought, whose tokens are actions.
    """
    rows = []
    for n in dict.fromkeys(row for row, *_ in thoughts):
        spans = [span for span in thoughts if span[0] == n]
        _, start, stop = spans[rng.integers(len(spans))]
        tokens = batch.tokens[n].tolist()
        ids = correct(decode(_before(batch, n, start)), decode(tokens[start:stop]))
        if not len(ids) or start + len(ids) > len(tokens):
            continue
        row = {}
        for name, array in batch.named().items():
            if array.shape == batch.tokens.shape:  # what is known of the thought's first token
                row[name] = np.append(array[n, :start], np.repeat(array[n, start], len(ids)))
        row["tokens"][start:] = ids
        row["action_mask"] = np.arange(start + len(ids)) >= start
        row["behavior_logp"] = np.zeros_like(row["behavior_logp"])
        rows.append(_continued(row))
    return rows


def _before(batch: Trajectory, row: int, start: int) -> list[int]:
    """The tokens that a token of an episode was written after: without what had been replaced."""
    parent = batch.extra.get("parent")
    if parent is None:
        return batch.tokens[row, :start].tolist()
    read, at = list[int](), int(parent[row, start])
    while at >= 0:
        read.append(int(batch.tokens[row, at]))
        at = int(parent[row, at])
    return read[::-1]


def _continued(row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A row whose actions continue each other, the first what it did, and have no reward."""
    positions, new_row = np.flatnonzero(row["action_mask"]), dict(row)
    if "parent" in row:
        new_row["parent"] = np.append(row["parent"][: positions[0] + 1], positions[:-1]).astype(
            np.int32
        )
    if "turn_rewards" in row:
        new_row["turn_rewards"] = np.where(row["action_mask"], 0, row["turn_rewards"])
    return new_row


def without(batch: Trajectory, thoughts: Sequence[tuple[int, int, int]]) -> Trajectory:
    """The batch, whose thoughts are no actions.

    Args:
      batch: episodes.
      thoughts: from `found`.
    """
    mask = np.array(batch.action_mask)
    for n, start, stop in thoughts:
        mask[n, start:stop] = False
    expert = np.zeros(len(mask), bool) if batch.expert is None else batch.expert
    return batch.replace(action_mask=mask, expert=expert)


def _together(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Rows as one group of experts' rows, which are trained on and have no reward."""
    length, out = max(len(row["tokens"]) for row in rows), {}
    for name, first in rows[0].items():
        out[name] = empty(name, (len(rows), length), first.dtype)
        for n, row in enumerate(rows):
            out[name][n, : len(row[name])] = row[name]
    all_rows = np.ones(len(rows), bool)
    return out | {"valid": ~all_rows, "expert": all_rows, "trained": all_rows}
