"""Thinking in chunks: the context begins anew with the prompt and the last tokens of the chunk.

After "The Markovian Thinker" (Aghajohari et al. 2025): a response of any length is read and trained
on at the cost of a chunk, and what a chunk has to know of the others it carries over in writing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from jaxrl.types import Completion, Request


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Where contexts begin anew."""

    size: int = 0
    """Tokens of a response that a context holds, those carried over included; 0: all."""
    carry: int = 0
    """Tokens carried over, fewer than `size`."""

    def spans(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """The chunks (carried from, first own, stop) of a response from `first` up to `end`."""
        if not self.size:
            return [(first, first, end)]
        own = range(first + self.size, end, self.size - self.carry)
        starts = [first, *own]
        return [
            (start - self.carry if start > first else first, start, stop)
            for start, stop in itertools.pairwise([*starts, end])
        ]

    def longest(self, first: int, end: int) -> int:
        """Tokens of the longest context, the prompt of `first` tokens included."""
        return min(end, first + self.size) if self.size else end


WHOLE = Chunks()
"""One context."""


def generate(
    sample: Callable[[Sequence[Request], int], Iterable[Completion]],
    requests: Sequence[Request],
    chunks: Chunks,
) -> Iterator[Completion]:
    """Whole completions, each as soon as it is finished, made of chunks.

    Args:
      sample: (requests, turn) -> their completions in any order; equal ids must draw anew at each
        turn.
      requests: without prefixes, each of its own id; budgets are of whole responses.
      chunks: where contexts begin anew.
    """
    parts: dict[int, list[Completion]] = {request.id: [] for request in requests}
    asked = {request.id: request for request in requests}
    for turn in itertools.count():
        if not asked:
            return
        wanted = [_next(request, parts[name], chunks) for name, request in asked.items()]
        for made in sample(wanted, turn):
            request, written = asked[made.request.id], parts[made.request.id]
            written.append(made)
            length = sum(len(c.tokens) for c in written)
            if made.stopped or not chunks.size or length >= request.max_new_tokens:
                del asked[request.id]
                yield _joined(request, written)


def _next(request: Request, written: Sequence[Completion], chunks: Chunks) -> Request:
    done = [token for completion in written for token in completion.tokens.tolist()]
    left, size = request.max_new_tokens - len(done), chunks.size or request.max_new_tokens
    tail = done[len(done) - chunks.carry :] if done else []
    return dataclasses.replace(
        request,
        prompt=(*request.prompt, *tail),
        max_new_tokens=min(size - len(tail), left),
    )


def _joined(request: Request, written: Sequence[Completion]) -> Completion:
    if len(written) == 1:
        return dataclasses.replace(written[0], request=request)

    def whole(name: str) -> np.ndarray | None:
        arrays = [getattr(completion, name) for completion in written]
        return None if arrays[0] is None else np.concatenate(arrays)

    arrays = ("tokens", "logp", "entropy", "version", "source", "top_ids", "top_logp")
    return dataclasses.replace(
        written[-1], request=request, **{name: whole(name) for name in arrays}
    )
