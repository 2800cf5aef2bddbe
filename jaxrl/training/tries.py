"""Sequences as tries: what each token continues, and where it stands in a packed row.

A sequence that was read from its first token to its last is one branch after its prompt. In an
episode whose context was replaced, by a summary or by the conversation of another agent, tokens
continue an earlier one (`Completion.parent`): its contexts are the paths of a trie. Each token of
it is computed once, forward and backward, and sees its own path alone.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Where a long response starts a new context, which has the prompt and the last tokens before.

    After "The Markovian Thinker" (Aghajohari et al. 2025): a response of any length is read and
    trained on at the cost of a chunk, and what a chunk has to know of the others it carries over in
    writing.
    """

    size: int = 0
    """Response tokens per context, the carried ones included; 0: one context for the whole
    response."""
    carry: int = 0
    """Last tokens of a chunk that the next one sees, from 0 to below `size`."""

    def spans(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """The chunks (carried from, first own, stop) of a response from `first` up to `end`."""
        if not self.size:
            return [(first, first, end)]
        later_starts = range(first + self.size, end, self.size - self.carry)
        starts = [first, *later_starts]
        return [
            (start - self.carry if start > first else first, start, stop)
            for start, stop in itertools.pairwise([*starts, end])
        ]

    def longest(self, first: int, end: int) -> int:
        """Length of the longest context, including the prompt of `first` tokens."""
        return min(end, first + self.size) if self.size else end


WHOLE = Chunks()
"""One context."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """A run of a sequence's tokens, and what else continues them."""

    prompt: np.ndarray
    """[P] int32, of the whole tree."""
    sequence: int
    start: int
    stop: int
    """It has the tokens from `start` to before `stop` as input."""
    end: int
    """Its actions lie before this; the last of them may be a target only."""
    sees: int
    """Tokens that it continues, of the prompt or of the run that it continues."""
    branches: tuple[Branch, ...] = ()
    """That continue its own tokens."""
    size: int = dataclasses.field(init=False)
    """Tokens of it and all that continues it."""

    def __post_init__(self) -> None:
        size = self.stop - self.start + sum(branch.size for branch in self.branches)
        object.__setattr__(self, "size", size)

    @property
    def leaf(self) -> bool:
        """Whether its context is part of no longer one."""
        return self.end > self.stop

    def whole(self) -> Iterator[Branch]:
        """It and all that continues it."""
        left = [self]
        while left:
            yield (branch := left.pop())
            left += branch.branches[::-1]


def branches(
    tokens: np.ndarray,
    mask: np.ndarray,
    first: np.ndarray,
    end: np.ndarray,
    parent: np.ndarray | None,
    chunks: Chunks,
) -> list[Branch]:
    """What the sequences add to their prompts.

    Args:
      tokens: [N, T] int32.
      mask: [N, T] bool, actions.
      first: [N] int, the first action.
      end: [N] int, after the last one; 0: the sequence is left out.
      parent: [N, T] int32, the token that each one continues, -1 for none; None: the one before.
      chunks: how responses were sampled.

    Raises:
      ValueError: an action that continues nothing, or a token that continues a later one.
    """
    roots: list[Branch] = []
    for n in np.flatnonzero(end).tolist():
        begin, stop = int(first[n]), int(end[n])
        if parent is not None and np.any(parent[n, 1:stop] != np.arange(stop - 1)):
            roots += _trie(tokens[n], mask[n], parent[n], n, begin, stop)
            continue
        if begin == 0:
            raise ValueError(
                f"sequence {n} begins with an action, which nothing predicts; put a token (BOS) "
                "before it"
            )
        for carried, start, last in chunks.spans(begin, stop):
            prompt = np.concatenate([tokens[n, :begin], tokens[n, carried:start]])
            # The last action is a target only: nothing is predicted from it, so it is no input.
            roots.append(Branch(prompt, n, start, last - 1, last, len(prompt)))
    return roots


def alone(branches: Sequence[Branch], tokens: np.ndarray) -> list[Branch]:
    """The same actions, each run of them behind a copy of all that it continues.

    Args:
      branches: as from `branches`.
      tokens: [N, T] int32.
    """
    separate: list[Branch] = []
    left = [(branch, branch.prompt[: branch.sees]) for branch in reversed(branches)]
    while left:
        branch, before = left.pop()
        run = tokens[branch.sequence, branch.start : branch.stop]
        if branch.end > branch.start:
            separate.append(
                dataclasses.replace(branch, prompt=before, sees=len(before), branches=())
            )
        left += [
            (child, np.concatenate([before, run[: child.sees]]))
            for child in reversed(branch.branches)
        ]
    return separate


def _trie(
    tokens: np.ndarray, mask: np.ndarray, parent: np.ndarray, n: int, first: int, end: int
) -> list[Branch]:
    """What a sequence of several contexts adds to its prompt, the tokens before its first action.

    Where a context is replaced before it, the prompt ends there.

    Args:
      tokens, mask, parent: [T], see `branches`.
      n: its number.
      first: the first action.
      end: after the last action.
    """
    at = np.arange(end)
    wrong = np.flatnonzero((parent[:end] >= at) | (mask[:end] & (parent[:end] < 0)))
    if len(wrong):
        raise ValueError(
            f"sequence {n}: token {wrong[0]} continues token {parent[wrong[0]]}; a token must "
            "continue an earlier one, and an action needs one"
        )
    broken = 1 + np.flatnonzero(parent[1:end] != at[:-1])
    first = min(first, int(broken[0]))
    starts = sorted({first, *broken.tolist()})
    children: list[list[Branch]] = [[] for _ in starts]
    top: list[Branch] = []
    for run, (start, stop) in reversed(list(enumerate(itertools.pairwise([*starts, end])))):
        actions = np.flatnonzero(mask[start:stop])
        acts = int(actions[-1]) if len(actions) else 0
        size = max([acts, *(child.sees for child in children[run])])
        if not size and not len(actions):
            continue  # nothing is predicted from it
        last = int(parent[start])
        holder = bisect.bisect_right(starts, last) - 1
        sees = last + 1 if holder < 0 else last + 1 - starts[holder]
        after = start + acts + 1 if len(actions) else start
        branch = Branch(
            tokens[:first], n, start, start + size, after, sees, tuple(reversed(children[run]))
        )
        (top if holder < 0 else children[holder]).append(branch)
    return top[::-1]


class Joined(NamedTuple):
    """Texts that begin alike as one sequence, in which each token of them stands once."""

    tokens: list[int]
    parent: list[int]
    """Where the token stands that each token continues, -1 for none, see `Completion.parent`."""
    ends: dict[int, int]
    """Where what continues a text begins, by number of the text."""


def join(texts: Sequence[Sequence[int]], endings: Sequence[int], most: int) -> list[Joined]:
    """Join texts that begin alike, each continued by single tokens.

    Args:
      texts: N of them, of one token or more.
      endings: E tokens; each of them continues each text.
      most: tokens of a sequence of more than one text.

    Returns:
      Sequences whose texts are all of them: each of a run of the sorted texts.
    """
    sequences: list[Joined] = []
    before: Sequence[int] = ()
    path: list[int] = []
    for n in sorted(range(len(texts)), key=lambda n: tuple(texts[n])):
        text = texts[n]
        pairs = zip(before, text, strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        added = len(text) - common + len(endings)
        if not common or len(sequences[-1].tokens) + added > most:
            sequences.append(Joined([], [], {}))
            common, path = 0, []
        tokens, parent, ends = sequences[-1]
        start, new = len(tokens), len(text) - common
        places = range(start, start + new)
        tokens += text[common:]
        parent += [path[common - 1] if common else -1, *places[:-1]][:new]
        path = [*path[:common], *places]
        ends[n] = len(tokens)
        tokens += endings
        parent += [path[-1]] * len(endings)
        before = text
    return sequences


class Laid(NamedTuple):
    """A run of tokens in a row."""

    branch: Branch
    cell: int
    """Of its first token in the row."""
    position: int
    """Of its first token in its context."""
    before: int
    """Cell of the token that it continues."""


def lay(
    branches: Sequence[Branch], at: int, position: int, size: int, visible_until: np.ndarray
) -> list[Laid]:
    """Lay branches out in a row, after the run of tokens that they continue.

    Those that see most of it stand first, so that each token is seen by a span of the row that
    begins with it: that of all that continue it.

    Args:
      branches: all that continue the run.
      at: cell of its first token.
      position: of its first token in its context.
      size: its tokens.
      visible_until: [L] int32 of the row; that of the run and the branches is set.
    """
    laid: list[Laid] = []
    left = _beside(branches, at, position, size, visible_until)[::-1]
    while left:
        laid.append(laid_branch := left.pop())
        branch = laid_branch.branch
        branch_size = branch.stop - branch.start
        left += _beside(
            branch.branches, laid_branch.cell, laid_branch.position, branch_size, visible_until
        )[::-1]
    return laid


def _beside(
    branches: Sequence[Branch], at: int, position: int, size: int, visible_until: np.ndarray
) -> list[Laid]:
    """The same for these branches alone, which leave room for what continues them."""
    end = at + size
    visible_until[at:end] = end
    laid: list[Laid] = []
    ordered = sorted(branches, key=lambda branch: -branch.sees)
    for sees, together in itertools.groupby(ordered, key=lambda branch: branch.sees):
        for branch in together:
            laid.append(Laid(branch, end, position + sees, at + sees - 1))
            end += branch.size
        visible_until[at : at + sees] = end
    return laid


def count_levels(visible_until: np.ndarray) -> int:
    """Levels of the deepest tree of packed rows, see `Packed.levels`.

    Args:
      visible_until: [..., L] int32.
    """
    until = visible_until.reshape(-1, visible_until.shape[-1])
    total = until.shape[1]
    ends = np.zeros(until.shape, bool)
    ends[:, :-1] = (until[:, :-1] != until[:, 1:]) & (until[:, :-1] > np.arange(1, total))
    changes = np.zeros((len(until), total + 1), np.int32)
    changes[:, 1:] += ends
    row, cell = np.nonzero(ends)
    np.add.at(changes, (row, until[row, cell]), -1)
    return 1 + int(np.cumsum(changes, axis=1).max(initial=0))
