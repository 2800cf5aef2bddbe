"""Trajectories to model input: each prompt once, its completions behind it, rows filled up.

A group of G completions of one prompt is laid out as a tree: the prompt's tokens, then each
completion in turn, each seeing the prompt and itself alone (`visible_until`). The prompt is
computed once, forward and backward, and the result equals that of G separate rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl.buckets import round_up
from jaxrl.chunks import WHOLE, Chunks
from jaxrl.types import Completion, Packed, Source, Trajectory


@dataclasses.dataclass(frozen=True)
class PackingConfig:
    """Shapes of the model's input. None of it changes the update."""

    micro_batch_tokens: int = 8192
    """Tokens per forward and backward pass; gradients of the micro-batches are accumulated."""
    bucket: int = 64
    """Row lengths are rounded up to powers of two times this."""
    row_length: int = 0
    """Length of packed rows; 0 takes the shortest bucket that holds the longest sequence twice."""


@dataclasses.dataclass(frozen=True)
class _Branch:
    sequence: int
    start: int
    stop: int


@dataclasses.dataclass
class _Tree:
    prompt: np.ndarray
    branches: list[_Branch]
    size: int


def _trees(
    tokens: np.ndarray, mask: np.ndarray, length: np.ndarray, row_length: int, chunks: Chunks
) -> list[_Tree]:
    trees: list[_Tree] = []
    open_tree: dict[bytes, _Tree] = {}
    for n in range(len(tokens)):
        if not mask[n].any():
            continue
        first = int(np.argmax(mask[n]))
        if first == 0:
            raise ValueError(
                f"sequence {n} begins with an action, which nothing predicts; put a token (BOS) "
                "before it"
            )
        for carried, start, stop in chunks.spans(first, int(length[n])):
            prompt = np.concatenate([tokens[n, :first], tokens[n, carried:start]])
            name = prompt.tobytes()
            # The last action is a target only: nothing is predicted from it, so it is no input.
            branch = _Branch(n, start, stop - 1)
            extra = branch.stop - branch.start
            tree = open_tree.get(name)
            if tree is None or tree.size + extra > row_length:
                tree = open_tree[name] = _Tree(prompt, [], len(prompt))
                trees.append(tree)
            tree.branches.append(branch)
            tree.size += extra
    return trees


def _fill(trees: Sequence[_Tree], row_length: int) -> list[list[_Tree]]:
    """First-fit decreasing: rows of trees whose sizes sum to at most `row_length`."""
    rows: list[list[_Tree]] = []
    space: list[int] = []
    for tree in sorted(trees, key=lambda t: -t.size):
        i = next((i for i, left in enumerate(space) if tree.size <= left), len(rows))
        if i == len(rows):
            rows.append([])
            space.append(row_length)
        rows[i].append(tree)
        space[i] -= tree.size
    return rows


def pack(
    trajectory: Trajectory,
    config: PackingConfig,
    *,
    row_multiple: int = 1,
    keep: np.ndarray | None = None,
    chunks: Chunks = WHOLE,
) -> tuple[Packed, dict[str, float]]:
    """Lay trajectories out as packed micro-batches.

    Args:
      trajectory: N sequences, as NumPy arrays on the host.
      config: shapes.
      row_multiple: rows of a micro-batch are a multiple of this (the mesh's batch shards).
      keep: [N] bool, sequences to compute; None computes all.
      chunks: how responses were sampled: the actions of each chunk see no more than it saw.

    Returns:
      The packed input, and what it cost: `padding_share` of the tokens computed, and
      `shared_share`, the part of the unshared tokens that sharing prompts saved.

    Raises:
      ValueError: a sequence longer than `config.row_length`, or one whose first token is an action.
    """
    tokens, mask = np.asarray(trajectory.tokens), np.asarray(trajectory.action_mask)
    count, width = tokens.shape
    if keep is not None:
        mask = mask & keep[:, None]
    length = np.where(mask.any(axis=1), width - np.argmax(mask[:, ::-1], axis=1), 0)
    first = np.where(mask.any(axis=1), np.argmax(mask, axis=1), 0)
    longest = max(*map(chunks.longest, first.tolist(), length.tolist()), 1)
    row_length = config.row_length or round_up(2 * longest, config.bucket)
    if longest > row_length:
        raise ValueError(
            f"packing.row_length={row_length} is shorter than a sequence of {longest} tokens; "
            "raise it, or set it to 0"
        )
    rows = _fill(_trees(tokens, mask, length, row_length, chunks), row_length)
    most = max(1, config.micro_batch_tokens // row_length)
    even = -(-len(rows) // max(1, -(-len(rows) // most)))  # micro-batches of equal size
    per_micro = min(_few(even), most)
    per_micro += -per_micro % row_multiple
    used = max(1, -(-len(rows) // per_micro))
    # One micro-batch needs no sum of gradients and is a program of its own. Else room for every
    # chunk alone in a row: a bound that does not change with the data.
    micro = 1 if used == 1 else -(-count * len(chunks.spans(0, width)) // per_micro)
    shape = (micro * per_micro, row_length)
    packed = {k: np.zeros(shape, np.int32) for k in ("tokens", "positions", "visible_until")}
    actions: list[tuple[int, int, int, int]] = []  # row, predictor, sequence, time
    for r, trees in enumerate(rows):
        at = 0
        for tree in trees:
            root, root_stop = at, at + len(tree.prompt)
            packed["tokens"][r, root:root_stop] = tree.prompt
            packed["positions"][r, root:root_stop] = np.arange(len(tree.prompt))
            packed["visible_until"][r, root:root_stop] = root + tree.size
            at = root_stop
            for branch in tree.branches:
                stop = at + branch.stop - branch.start
                packed["tokens"][r, at:stop] = tokens[branch.sequence, branch.start : branch.stop]
                packed["positions"][r, at:stop] = len(tree.prompt) + np.arange(stop - at)
                packed["visible_until"][r, at:stop] = stop
                own = mask[branch.sequence, branch.start : branch.stop + 1]
                for i in np.flatnonzero(own).tolist():
                    before = root_stop - 1 if i == 0 else at + i - 1
                    actions.append((r, before, branch.sequence, branch.start + i))
                at = stop
    row, predictor, sequence, time = np.array(actions, np.int64).reshape(-1, 4).T
    per_row = np.bincount(row, minlength=shape[0])
    width_a = _action_bucket(int(per_row.max()), row_length)
    column = np.arange(len(row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    predictors = np.zeros((shape[0], width_a), np.int32)
    targets = np.zeros((shape[0], width_a), np.int32)
    gather = np.full((count, width), -1, np.int32)
    predictors[row, column] = predictor
    targets[row, column] = tokens[sequence, time]
    gather[sequence, time] = row * width_a + column

    def fold(a: np.ndarray) -> np.ndarray:
        return a.reshape(micro, per_micro, *a.shape[1:])

    real = sum(tree.size for trees in rows for tree in trees)
    unshared = int(np.maximum(length - 1, 0).sum())
    return (
        Packed(
            **{k: fold(v) for k, v in packed.items()},
            predictor=fold(predictors),
            target=fold(targets),
            gather=gather,
            micro_batches=np.int32(used),
        ),
        {
            "padding_share": 1 - real / (used * per_micro * row_length),
            "shared_share": 1 - real / max(1, unshared),
        },
    )


def _few(rows: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that holds `rows`: few shapes, little padding."""
    whole = round_up(rows, 1)
    return whole // 4 * 3 if 0 < rows <= whole // 4 * 3 else whole


def _action_bucket(most: int, row_length: int) -> int:
    # Each branch's last action needs no input token, so a row may hold more actions than tokens.
    step = max(1, row_length // 8)
    return max(1, -(-most // step)) * step


def reward_parts(parts: Sequence[Mapping[str, float] | None]) -> np.ndarray | None:
    """Named parts of N rewards as [N, K] float32, in the order of their names.

    Args:
      parts: of each score; None where scoring failed, which gives zeros.

    Returns:
      None if the scores have no parts, or not all the same.
    """
    names = {tuple(sorted(p)) for p in parts if p is not None}
    if len(names) != 1 or names == {()}:
        return None
    (order,) = names
    return np.array([[p[k] if p else 0.0 for k in order] for p in parts], np.float32)


def trajectory(
    completions: Sequence[Completion],
    rewards: Sequence[float | None],
    group_ids: Sequence[int],
    *,
    length: int,
) -> Trajectory:
    """Scored completions as one host-side trajectory.

    Args:
      completions: N of them.
      rewards: N scores; None where scoring failed.
      group_ids: N group numbers.
      length: T, at least the longest prompt plus completion.
    """
    count = len(completions)
    tokens = np.zeros((count, length), np.int32)
    mask = np.zeros((count, length), bool)
    logp = np.zeros((count, length), np.float32)
    version = np.zeros((count, length), np.int32)
    for n, c in enumerate(completions):
        start, stop = len(c.request.prompt), len(c.request.prompt) + len(c.tokens)
        tokens[n, :start] = c.request.prompt
        tokens[n, start:stop] = c.tokens
        mask[n, start:stop] = c.actions  # not what was forced on it, nor observations
        logp[n, start:stop] = c.logp
        version[n, start:stop] = c.version
    expert = [c.source is not None and np.any(c.source == Source.EXPERT) for c in completions]
    return Trajectory(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=logp,
        policy_version=version,
        rewards=np.array([0.0 if r is None else r for r in rewards], np.float32),
        valid=np.array([r is not None for r in rewards]),
        group_ids=np.asarray(group_ids, np.int32),
        expert=np.array(expert, bool),
    )
