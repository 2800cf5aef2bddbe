"""Responses in chunks: each context has the prompt and the last tokens of the chunk before.

After "The Markovian Thinker" (Aghajohari et al. 2025): a response of any length is read and trained
on at the cost of a chunk, and what a chunk has to know of the others it carries over in writing.
"""

from __future__ import annotations

import dataclasses
import itertools


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Where a long response starts a new context."""

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
