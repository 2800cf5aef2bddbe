"""The interface of sampling for `jaxrl.rollout.drive`, and the sampler of this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from jaxrl.sampling import admission, sampler, worlds
from jaxrl.sampling.drafts import Texts
from jaxrl.sampling.requests import start_of
from jaxrl.sampling.work import Setup, Work
from jaxrl.types import Completion, Params, Request


class Decoded(NamedTuple):
    """Result of a chunk of decoding."""

    ended: list[Completion]
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


class Engine(Protocol):
    """Sequences in progress under one set of weights. True while anything is left to decode."""

    def __bool__(self) -> bool:
        """Whether anything is left to decode."""

    @property
    def context(self) -> int:
        """Tokens in the KV caches."""

    @property
    def crowded(self) -> bool:
        """Whether requests wait for slots that held sequences have, and the next chunk takes."""

    def put(self, requests: Sequence[Request]) -> None:
        """Begin requests, or continue the held sequences of the same ids."""

    def keep(self, ids: Collection[int]) -> None:
        """Release all held sequences but these."""

    def chunk(self, version: int) -> Decoded:
        """Decode for a while; `version` is recorded with each token."""

    def unfinished(self) -> list[Completion]:
        """Sequences in progress, with the tokens sampled so far."""


Open = Callable[[Setup, Params], Engine]
"""`(setup, sampling params) -> engine`."""


class Local:
    """The sampler of this process."""

    def __init__(self, setup: Setup, params: Params, texts: Texts | None = None) -> None:
        """Args: the sampler's setup, parameters as from `policy.sampling_params`, and completions
        that drafts are looked up in; None: none have ended."""
        self._setup, self._params = setup, params
        self.work = Work(texts=Texts() if texts is None else texts)

    def __bool__(self) -> bool:
        return bool(self.work)

    @property
    def context(self) -> int:
        """Tokens in the KV caches."""
        return sum(seat.length for seat in self.work.seats if seat is not None)

    @property
    def crowded(self) -> bool:
        """Whether the next chunk releases held sequences."""
        return sampler.held_for_queue(self._setup, self.work) > 0

    def put(self, requests: Sequence[Request]) -> None:
        """Begin requests, or continue the held sequences of the same ids and draws."""
        setup, work, waiting = self._setup, self.work, sampler.held_slots(self.work)
        draws = {s.request.id: s.request.draw for s in work.seats if s is not None and s.held}
        redrawn_ids = [r.id for r in requests if draws.get(r.id, r.draw) != r.draw]
        sampler.release(work, redrawn_ids)  # those continue in another context
        waiting = {name: seat for name, seat in waiting.items() if name not in redrawn_ids}
        continuations = [r for r in requests if r.id in waiting]
        sampler.continue_held(setup, self._params, work, continuations)
        if new := [r for r in requests if r.id not in waiting]:
            sampler.submit(setup, work, new)

    def keep(self, ids: Collection[int]) -> None:
        """Release all held sequences but these."""
        held_slots = sampler.held_slots(self.work)
        sampler.release(self.work, [name for name in held_slots if name not in ids])

    def chunk(self, version: int) -> Decoded:
        """Decode one chunk."""
        work = self.work
        if work.queue and work.queue[0].world is not None:
            return self._played(version)
        sampler.release_for_queue(self._setup, work)
        before, waiting = _lengths(work), {r.id: start_of(r) for r in work.queue}
        counts, blocks = _counts(work), work.blocks
        ended = sampler.advance(self._setup, self._params, work, version=version)
        after = {c.request.id: len(c.request.prompt) + len(c.tokens) for c in ended}
        after |= _lengths(work)
        new = {name: start for name, start in waiting.items() if name in after.keys() - before}
        sampled = [n - before.get(name, len(new.get(name, ()))) for name, n in after.items()]
        read = list(map(len, dict.fromkeys(new.values())))  # the prompt of a group is read once
        took = admission.work_with_blocks(self._setup, read, work.blocks - blocks)
        done = {name: count - counts[name] for name, count in _counts(work).items()}
        return Decoded(ended, max(sampled, default=0), sum(sampled), *took, **done)

    def _played(self, version: int) -> Decoded:
        """Whole episodes, as many as there are slots."""
        setup, waiting = self._setup, {r.id: start_of(r) for r in self.work.queue}
        cached, blocks = self.work.cached, self.work.blocks
        ended = worlds.play(setup, setup.world, self._params, self.work, version=version)
        cached, blocks = self.work.cached - cached, self.work.blocks - blocks
        read = list(map(len, dict.fromkeys(waiting[c.request.id] for c in ended)))
        lengths = [len(c.tokens) for c in ended]
        took = admission.work_with_blocks(setup, read, blocks)
        return Decoded(ended, max(lengths), sum(lengths), *took, cached=cached)

    def unfinished(self) -> list[Completion]:
        """Sequences in progress, with the tokens sampled so far."""
        return sampler.unfinished(self._setup, self.work)


def _counts(work: Work) -> dict[str, int]:
    """Counts of drafts and of the prefix cache so far, by their names in `Decoded`."""
    return {
        "verified": work.verified,
        "accepted": work.accepted,
        "cached": work.cached,
        "verified_beside": work.verified_beside,
        "accepted_beside": work.accepted_beside,
    }


def _lengths(work: Work) -> dict[int, int]:
    """Lengths of the sequences in slots that are not held, by request id."""
    return {s.request.id: s.length for s in work.seats if s is not None and s.held is None}
