"""Packs trajectories into rows of model input, with each token once before all that reads it.

A group of G completions of one prompt is laid out as a tree: the prompt's tokens, then each
completion in turn, each attending only to the prompt and to itself (`visible_until`). The prompt is
computed once, forward and backward, and the result equals that of G separate rows. An episode whose
context was replaced is a tree too, a trie of its contexts (`jaxrl.training.tries`).
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from jaxrl.mesh.buckets import round_to_eighth, round_up
from jaxrl.training import tries
from jaxrl.training.tries import WHOLE, Branch, Chunks
from jaxrl.types import Array, Completion, Packed, Source, Trajectory


@dataclasses.dataclass(frozen=True)
class PackingConfig:
    """Shapes of the model's input. No field changes the update."""

    micro_batch_tokens: int = 8192
    """Tokens per forward and backward pass, over all devices; gradients of the micro-batches are
    accumulated."""
    bucket: int = 64
    """Row lengths are multiples of this: every multiple up to 16 times it, then 8 per doubling."""
    row_length: int = 0
    """Length of packed rows, in tokens; 0 chooses it: twice the longest sequence or the longest
    prompt with all its completions, whichever is shorter, within `micro_batch_tokens`."""
    share_prompts: bool = True
    """Compute a prompt once for all its completions. Without it every completion lies in a row
    behind its own copy of the prompt."""


@dataclasses.dataclass
class _Tree:
    prompt: np.ndarray
    branches: list[Branch]
    size: int


def _trees(branches: Sequence[Branch], most: int, share: bool) -> list[_Tree]:
    """Branches of equal prompts together, in trees of at most `most` tokens; or each alone."""
    if not share:
        return [_Tree(b.prompt, [b], len(b.prompt) + b.size) for b in branches]
    trees: list[_Tree] = []
    open_tree: dict[bytes, _Tree] = {}
    for branch in branches:
        name = branch.prompt.tobytes()
        tree = open_tree.get(name)
        if tree is None or tree.size + branch.size > most:
            tree = open_tree[name] = _Tree(branch.prompt, [], len(branch.prompt))
            trees.append(tree)
        tree.branches.append(branch)
        tree.size += branch.size
    return trees


def _fill(trees: Sequence[_Tree], row_length: int) -> list[list[_Tree]]:
    """First-fit decreasing: rows of trees whose sizes sum to at most `row_length`."""
    rows: list[list[_Tree]] = []
    leaves = 1 << max(0, len(trees) - 1).bit_length()
    # Binary tree over rows: the most space that a row below each node has left. It finds the first
    # row with enough space in log(rows) steps.
    space = [row_length] * (2 * leaves)
    for tree in sorted(trees, key=lambda t: -t.size):
        node = 1
        while node < leaves:
            node *= 2
            node += space[node] < tree.size
        if node - leaves == len(rows):
            rows.append([])
        rows[node - leaves].append(tree)
        space[node] -= tree.size
        while node > 1:
            node //= 2
            space[node] = max(space[2 * node], space[2 * node + 1])
    return rows


def _parted(rows: Sequence[Sequence[_Tree]], per_micro: int) -> bool:
    """Whether contexts of one sequence lie in several micro-batches."""
    placements = {
        (branch.sequence, r // per_micro)
        for r, trees in enumerate(rows)
        for tree in trees
        for branch in tree.branches
    }
    return len(placements) > len({sequence for sequence, _ in placements})


def pack(
    trajectory: Trajectory,
    config: PackingConfig,
    *,
    row_multiple: int = 1,
    keep: Array | None = None,
    chunks: Chunks = WHOLE,
) -> tuple[Packed, dict[str, float]]:
    """Lay trajectories out as packed micro-batches.

    Args:
      trajectory: N sequences, as NumPy arrays on the host; `extra["parent"]` [N, T], if it is
        there, has for each token the one before it in its context, see `jaxrl.types.Completion`.
      config: shapes.
      row_multiple: rows of a micro-batch are a multiple of this (the mesh's batch shards).
      keep: [N] bool, sequences to compute; None computes all.
      chunks: how responses were sampled: the actions of each chunk see no more than it saw.

    Returns:
      The packed input, and what it cost: `padding_share` of the tokens computed, and
      `shared_share`, the part of the unshared tokens that sharing prompts saved.

    Raises:
      ValueError: a sequence longer than `config.row_length`, one whose first token is an action, or
        group ids that are not below N.
    """
    tokens, mask = np.asarray(trajectory.tokens), np.asarray(trajectory.action_mask)
    count, width = tokens.shape
    _check_groups(np.asarray(trajectory.group_ids))
    computed = np.ones(count, bool) if keep is None else np.asarray(keep, bool)
    acts = computed & mask.any(axis=1)
    first = np.where(acts, np.argmax(mask, axis=1), 0)
    end = np.where(acts, width - np.argmax(mask[:, ::-1], axis=1), 0)
    parent = None
    if "parent" in trajectory.extra:
        parent = np.asarray(trajectory.extra["parent"])
    branches = tries.branches(tokens, mask, first, end, parent, chunks)
    if not config.share_prompts:
        branches = tries.alone(branches, tokens)
    row_length = _row_length(branches, config, row_multiple)
    rows = _fill(_trees(branches, row_length, config.share_prompts), row_length)
    most = config.micro_batch_tokens // row_length
    most = max(row_multiple, most - most % row_multiple)
    even = -(-len(rows) // max(1, -(-len(rows) // most)))  # micro-batches of equal size
    per_micro = min(_few(even), most)
    per_micro += -per_micro % row_multiple
    if per_micro * row_length > config.micro_batch_tokens:
        warnings.warn(
            f"packing.micro_batch_tokens={config.micro_batch_tokens} is exceeded: a row has "
            f"{row_length} tokens, and a micro-batch {per_micro} rows, one for each batch shard of "
            f"the mesh; set it to {per_micro * row_length} if the memory allows, or shorten "
            "sequences",
            stacklevel=2,
        )
    used = max(1, -(-len(rows) // per_micro))
    # One micro-batch needs no sum of gradients and is a program of its own. Else room for every
    # chunk alone in a row: a bound that does not change with the data. Contexts that share only
    # the prompt can be more; their number is rounded up, so that few programs are compiled.
    most_rows = count * len(chunks.spans(0, width))
    if len(branches) > most_rows:
        most_rows = _few(len(branches))
    micro = 1 if used == 1 else -(-most_rows // per_micro)
    acted = {
        (b.sequence, b.start): int(np.count_nonzero(mask[b.sequence, b.start : b.end]))
        for root in branches
        for b in root.whole()
    }
    per_row = [
        sum(acted[b.sequence, b.start] for t in r for root in t.branches for b in root.whole())
        for r in rows
    ]
    shape = (micro * per_micro, row_length)
    by_action = (shape[0], _action_bucket(max(per_row, default=0), row_length))
    inputs = {k: np.zeros(shape, np.int32) for k in ("tokens", "positions", "visible_until")}
    actions = {k: np.zeros(by_action, np.int32) for k in ("predictor", "target", "time")}
    actions["sequence"] = np.full(by_action, -1, np.int32)
    actions["leaf"] = np.zeros(by_action, bool)
    support = None if trajectory.support is None else np.asarray(trajectory.support)
    if support is not None:
        actions["support"] = np.zeros((*by_action, support.shape[-1]), np.uint32)
    count_up = np.arange(max(width, row_length) + 1, dtype=np.int32)
    unshared = 0
    for r, trees in enumerate(rows):
        at = done = 0
        for tree in trees:
            stop = at + len(tree.prompt)
            inputs["tokens"][r, at:stop] = tree.prompt
            inputs["positions"][r, at:stop] = count_up[: len(tree.prompt)]
            laid = tries.lay(tree.branches, at, 0, len(tree.prompt), inputs["visible_until"][r])
            for branch, cell, position, before in laid:
                n, start = branch.sequence, branch.start
                size, branch_span = branch.stop - start, slice(start, branch.end)
                inputs["tokens"][r, cell : cell + size] = tokens[n, start : branch.stop]
                inputs["positions"][r, cell : cell + size] = count_up[position : position + size]
                span = slice(done, done := done + acted[n, start])
                # an action is predicted by the token before it; a branch's first token, by the
                # last that it sees of what it continues
                predictors = count_up[cell - 1 : cell - 1 + branch.end - start]
                if done - span.start == len(predictors):
                    chosen: slice | np.ndarray = slice(None)
                else:
                    chosen = mask[n, branch_span]
                actions["predictor"][r, span] = predictors[chosen]
                actions["target"][r, span] = tokens[n, branch_span][chosen]
                actions["sequence"][r, span] = n
                actions["time"][r, span] = count_up[branch_span][chosen]
                if support is not None:
                    actions["support"][r, span] = support[n, branch_span][chosen]
                if mask[n, start]:
                    actions["predictor"][r, span.start] = before
                if branch.leaf and done > span.start:
                    actions["leaf"][r, done - 1] = True
                unshared += (position + size) * branch.leaf
            at += tree.size

    folded = {k: a.reshape(micro, per_micro, *a.shape[1:]) for k, a in (inputs | actions).items()}
    real = sum(tree.size for trees in rows for tree in trees)
    if chunks.size:  # what a chunk carries over counts once
        unshared = int(np.maximum(end - 1, 0).sum())
    return (
        Packed(
            **folded,
            computed=computed,
            micro_batches=np.array(used, np.int32),
            length=width,
            levels=_levels(inputs["visible_until"]) if config.share_prompts else 1,
            cut=bool(chunks.size) or (parent is not None and _parted(rows, per_micro)),
        ),
        {
            "padding_share": 1 - real / (used * per_micro * row_length),
            "shared_share": 1 - real / max(1, unshared),
        },
    )


def _row_length(branches: Sequence[Branch], config: PackingConfig, row_multiple: int) -> int:
    longest = max((len(b.prompt) + b.size for b in branches), default=0)
    # The last action is counted although it is no input, so that the budget holds as documented.
    longest += 1
    if config.row_length:
        if longest - 1 > config.row_length:
            raise ValueError(
                f"packing.row_length={config.row_length} is shorter than a sequence of {longest} "
                "tokens; raise it, or set it to 0"
            )
        return config.row_length
    trees = functools.partial(_trees, branches, share=config.share_prompts)
    tree = max((t.size for t in trees(sys.maxsize)), default=0)
    target_length = round_to_eighth(min(2 * longest, max(longest, tree)), config.bucket)
    affordable = round_to_eighth(
        config.micro_batch_tokens // row_multiple, config.bucket, down=True
    )
    if target_length <= affordable:
        return target_length
    least = round_to_eighth(longest, config.bucket)
    # A longer row may share prompts among more branches, or hold no second sequence.
    return min(
        (least, max(least, affordable)),
        key=lambda length: length * len(_fill(trees(length), length)),
    )


def _levels(visible_until: np.ndarray) -> int:
    """Levels of the deepest tree, rounded up, so that few programs are compiled: 1, 2, 4, ..."""
    return round_up(tries.count_levels(visible_until), 1)


def _few(rows: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that holds `rows`: few shapes, little padding."""
    power = round_up(rows, 1)
    return power // 4 * 3 if 0 < rows <= power // 4 * 3 else power


def _action_bucket(most: int, row_length: int) -> int:
    # Each branch's last action needs no input token, so a row may hold more actions than tokens.
    step = max(1, row_length // 8)
    return max(1, -(-most // step)) * step


def scored(tokens: np.ndarray, mask: np.ndarray, parent: np.ndarray) -> Trajectory:
    """Sequences of several contexts each, whose actions are scored and not trained on.

    Args:
      tokens: [N, T] int32.
      mask: [N, T] bool, actions.
      parent: [N, T] int32, see `pack`.
    """
    count, zeros = len(tokens), np.zeros(tokens.shape, np.float32)
    return Trajectory(
        tokens=tokens,
        action_mask=mask,
        behavior_logp=zeros,
        policy_version=zeros.astype(np.int32),
        rewards=np.zeros(count, np.float32),
        valid=np.ones(count, bool),
        group_ids=np.arange(count, dtype=np.int32),
        expert=np.ones(count, bool),
        extra={"parent": parent},
    )


def shares(batch: Trajectory, count: int) -> Iterator[Trajectory]:
    """Equal shares of whole groups, one per update, each with groups numbered from 0.

    Args:
      batch: N sequences, or [..., N] of several runs, whose groups and kinds have the same places.
        `extra["addition"]`, [..., N] int32, tells apart the step's own, 0, and those that each
        extension has added, 1, 2, ...; each share has its part of every kind.
      count: of updates.
    """
    places = batch.group_ids.shape
    addition = batch.extra.get("addition", np.zeros(places, np.int32))
    first = np.asarray(addition).reshape(-1, places[-1])[0]
    kinds = [np.flatnonzero(first == kind) for kind in np.unique(first)]
    for parts in zip(*(np.split(kind, count) for kind in kinds), strict=True):
        rows = (slice(None),) * (len(places) - 1) + (np.concatenate(parts),)
        part = jax.tree.map(lambda array: array[rows], batch)  # noqa: B023
        yield part.replace(group_ids=renumbered(part.group_ids))


def renumbered(group_ids: Array) -> np.ndarray:
    """The same groups under the ids 0, 1, ..., in their order, int32 of the same shape."""
    _, dense = np.unique(group_ids, return_inverse=True)
    return dense.reshape(np.shape(group_ids)).astype(np.int32)


def _check_groups(group_ids: np.ndarray) -> None:
    wrong = group_ids[(group_ids < 0) | (group_ids >= len(group_ids))]
    if len(wrong):
        raise ValueError(
            f"group_ids hold {wrong[0]}, but the batch has {len(group_ids)} sequences; number its "
            "groups from 0 with packing.renumbered"
        )


def reward_parts(
    parts: Sequence[Mapping[str, float] | None], part_names: Sequence[str] = ()
) -> np.ndarray | None:
    """Named parts of N rewards as [N, K] float32, in the order of their names.

    Args:
      parts: of each score; None where scoring failed, which gives zeros.
      part_names: names of the parts that are needed; empty: all.

    Returns:
      None if all are needed, and the scores have no parts or not all the same.

    Raises:
      ValueError: a score lacks a part that is needed.
    """
    for name in part_names:
        lacking = next((p for p in parts if p is not None and name not in p), None)
        if lacking is not None:
            raise ValueError(
                f"objective.advantage_args.weights or objective.shaping_args.parts names the part "
                f"{name!r}, but a reward has the parts {', '.join(sorted(lacking)) or 'none'}; "
                "name parts that all rewards have"
            )
    if part_names:
        return np.array(
            [[p[k] if p else 0.0 for k in sorted(part_names)] for p in parts], np.float32
        )
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
    policy = np.int8(Source.POLICY)
    source = np.full((count, length), Source.OBSERVATION, np.int8)
    logp = np.zeros((count, length), np.float32)
    version = np.zeros((count, length), np.int32)
    for n, c in enumerate(completions):
        start, stop = len(c.request.prompt), len(c.request.prompt) + len(c.tokens)
        tokens[n, :start] = c.request.prompt
        tokens[n, start:stop] = c.tokens
        source[n, start:stop] = policy if c.source is None else c.source
        logp[n, start:stop] = c.logp
        version[n, start:stop] = c.version
    expert = source == Source.EXPERT
    support = next((c.support for c in completions if c.support is not None), None)
    if support is not None:
        words = support.shape[1]
        support = np.zeros((count, length, words), np.uint32)
        for n, c in enumerate(completions):
            if c.support is not None:
                start = len(c.request.prompt)
                support[n, start : start + len(c.tokens)] = c.support
        support[source != Source.POLICY] = 0
    return Trajectory(
        tokens=tokens,
        action_mask=(source == Source.POLICY) | expert,
        behavior_logp=logp,
        policy_version=version,
        rewards=np.array([0.0 if r is None else r for r in rewards], np.float32),
        valid=np.array([r is not None for r in rewards]),
        group_ids=np.asarray(group_ids, np.int32),
        expert=expert.any(axis=1),
        support=support,
    )
