"""The host's view of sampling: what stays the same, what is under way, and what has come of it."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxrl import logits as processors
from jaxrl import mesh
from jaxrl import slots as slot
from jaxrl.buckets import round_up
from jaxrl.logits import Guide
from jaxrl.slots import Features
from jaxrl.types import Completion, Request, Source
from models.config import DecoderConfig

SMALLEST = 4
"""Slots; fewer decode no faster."""


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """How the sampler uses memory. None of it changes what is sampled."""

    slots: int = 64
    """Sequences decoded at once."""
    prefill_rows: int = 8
    """Prompts prefilled at once."""
    prefill_piece: int = 256
    """Most tokens of a prompt read in one pass; a longer one is read in pieces."""
    chunk: int = 64
    """Most tokens a slot advances between two looks from the host."""
    bucket: int = 64
    """Cache lengths and attention windows are rounded up to powers of two times this."""


class Setup(NamedTuple):
    """What stays the same from call to call on a `Work`."""

    config: DecoderConfig
    key: jax.Array
    """Typed PRNG key."""
    stop_ids: tuple[int, ...]
    """Tokens that end a sequence, or a turn."""
    max_prompt: int
    """Longest prompt with its prefix."""
    max_length: int
    """Longest prompt with its response."""
    sampler: SamplerConfig = SamplerConfig()
    features: Features = Features()
    """What requests may ask for, see `requests.features_of`."""
    guide: Guide = Guide(processors.keep)
    text: Callable[[Sequence[int]], str] | None = None
    """Decodes tokens, for stop strings."""
    lean: bool = False
    """Leave out features while no live request asks for them. Faster, but what is left out is
    compiled anew the first time."""
    hold: bool = False
    """Keep ended sequences in their slots until `extend` or `release`."""

    @property
    def models(self) -> slot.Models:
        """All decoders, the policy first."""
        return (self.config, *self.guide.models)

    @property
    def prompt_width(self) -> int:
        """Width of prefilled caches."""
        piece = self.sampler.prefill_piece
        width = round_up(self.max_prompt, 16)
        return width if width <= piece else round_up(width, piece)

    @property
    def piece(self) -> int:
        """Most tokens of a prompt, or of an observation, read in one pass."""
        return min(self.sampler.prefill_piece, self.prompt_width)

    @property
    def capacity(self) -> int:
        """Greatest width of the slots' caches."""
        return max(self.prompt_width, round_up(self.max_length, self.sampler.bucket))

    @property
    def sizes(self) -> list[int]:
        """Numbers of slots that there may be, ascending."""
        return _doubling(min(SMALLEST, self.sampler.slots), self.sampler.slots)

    @property
    def widths(self) -> list[int]:
        """Widths that the slots' caches may have, ascending."""
        return _doubling(min(self.sampler.bucket, self.capacity), self.capacity)


def _doubling(first: int, last: int) -> list[int]:
    values = [first]
    while values[-1] < last:
        values.append(min(2 * values[-1], last))
    return values


@dataclasses.dataclass
class Seat:
    """The host's view of one occupied slot."""

    request: Request
    length: int
    turn: int
    """Where the current turn of the policy starts."""
    observed: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Spans of observations, as positions in the sequence."""
    held: bool = False


@dataclasses.dataclass
class Work:
    """Sequences under way, and requests that wait for a slot. `advance` and its like change it."""

    slots: slot.SlotState | None = None
    seats: list[Seat | None] = dataclasses.field(default_factory=list)
    queue: deque[Request] = dataclasses.field(default_factory=deque)

    def __bool__(self) -> bool:
        """Whether anything is left to decode."""
        return bool(self.queue) or any(s is not None and not s.held for s in self.seats)


def find_stops(setup: Setup, work: Work, active: list[int], before: list[int]) -> dict[int, int]:
    """Slots whose turn completed a stop string, and the length at which it did."""
    watched = [i for i in active if work.seats[i].request.stop]
    if not watched:
        return {}
    tokens, found = mesh.fetch(work.slots.tokens), {}
    for i in watched:
        seat = work.seats[i]

        def complete(stop: int, i: int = i, seat: Seat = seat) -> bool:
            text = setup.text(tokens[i, seat.turn : stop].tolist())
            return any(string in text for string in seat.request.stop)

        if complete(seat.length):
            first = max(before[i], seat.turn) + 1
            ends = range(first, seat.length)
            found[i] = seat.length = next((n for n in ends if complete(n)), seat.length)
    return found


def read_out(
    setup: Setup, work: Work, chosen: list[int], stopped: Mapping[int, int]
) -> list[Completion]:
    """What the slots `chosen` hold."""
    if not chosen:
        return []
    s = work.slots
    arrays = mesh.fetch((s.tokens, s.logp, s.entropy, s.version, s.top_ids, s.top_logp))
    return [_completion(setup, work.seats[i], [a[i] for a in arrays], i in stopped) for i in chosen]


def _completion(setup: Setup, seat: Seat, arrays: list[np.ndarray], by_string: bool) -> Completion:
    request, start = seat.request, len(seat.request.prompt)
    tokens, logp, entropy, version, top_ids, top_logp = (
        a[start : seat.length].copy() for a in arrays
    )
    source = np.zeros(len(tokens), np.int8)
    for first, last in seat.observed:
        source[first - start : last - start] = Source.OBSERVATION
    given = 0
    if request.prefix is not None:
        given = len(request.prefix.tokens)
        source[:given] = request.prefix.source
    outside = source != Source.POLICY
    outside[:given] = True
    for array in (logp, entropy, version):
        array[outside] = 0
    top_ids[outside], top_logp[outside] = -1, 0
    if request.prefix is not None:
        p = request.prefix
        logp[:given], entropy[:given], version[:given] = p.logp, p.entropy, p.version
    by_token = len(tokens) > given and int(tokens[-1]) in setup.stop_ids
    top = request.top_logprobs
    return Completion(
        request,
        tokens,
        logp,
        entropy,
        version,
        stopped=by_token or by_string,
        source=source,
        top_ids=top_ids[:, :top] if top else None,
        top_logp=top_logp[:, :top] if top else None,
    )
