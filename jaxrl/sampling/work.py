"""The host side of sampling: its setup, the sequences in progress, and their results."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxrl.mesh import mesh
from jaxrl.mesh.buckets import round_to_eighth, round_up
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import logits as processors
from jaxrl.sampling import slots as slot
from jaxrl.sampling.drafts import Drafter, DraftModel, Texts
from jaxrl.sampling.logits import Guide
from jaxrl.sampling.prefixes import Prefixes
from jaxrl.sampling.slots import Features
from jaxrl.types import Array, Completion, OutputConstraint, Params, Request, Source

SMALLEST = 4
"""Slots; fewer decode no faster."""
_ROWS = 8
"""Slots whose tokens are copied to the host together."""


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """How the sampler uses memory. None of it changes what is sampled."""

    slots: int = 64
    """Sequences decoded at once; rounded up to a multiple of the mesh's batch shards."""
    prefill_rows: int = 8
    """Prompts prefilled at once; rounded up likewise."""
    prefill_piece: int = 256
    """Most tokens of a prompt read in one pass; a longer one is read in pieces."""
    chunk: int = 64
    """Most tokens that a slot decodes before the host reads the results."""
    bucket: int = 64
    """Cache lengths are powers of two times this, up to the greatest, which is a multiple of it."""
    drafts: Literal["none", "lookup", "group", "epochs", "model", "layers"] = "none"
    """How the next tokens of a sequence are guessed, so that one pass can verify several: `none`,
    not at all; `lookup`, as what followed its last tokens where they stood before; `group`, there
    or in completions of the same prompt that ended in this round of sampling; `epochs`, in those
    of earlier rounds and steps too; `model`, by `draft_model`; `layers`, by the policy's first
    `draft_layers`. Passes verify drafts where that is expected to pay."""
    draft_tokens: int = 4
    """Most tokens of a draft."""
    draft_model: str = ""
    """Of `drafts` model: a small model of the same tokenizer, by name, directory or run; it is not
    trained."""
    draft_layers: int = 0
    """Of `drafts` layers: how many, fewer than the model has."""
    prefix_cache: int = 0
    """MiB of beginnings of prompts that are kept for prompts that begin alike; 0: none. What is
    sampled is the same to the last bit whether they are found or not, and that without a cache but
    for rounding."""
    prefix_block: int = 64
    """Tokens that are kept together."""

    @property
    def most_drafted(self) -> int:
        """Most tokens that a pass verifies; 0: none."""
        return 0 if self.drafts == "none" else self.draft_tokens

    @property
    def drafts_beside(self) -> bool:
        """Whether drafts are looked up in completions of the same prompt."""
        return self.drafts in ("group", "epochs")


class Setup(NamedTuple):
    """What stays the same from call to call on a `Work`."""

    config: DecoderConfig
    key: Array
    """Typed PRNG key, or its data on the way to another process."""
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
    """Decodes tokens, for stop strings; of part of a turn too, but for a few characters at its
    start."""
    matchers: Callable[[OutputConstraint], Any] | None = None
    """Begins to match a constraint, see `constraints.matchers`; needed where requests have one."""
    lean: bool = False
    """Leave out features while no live request asks for them. Faster, but what is left out is
    compiled anew the first time."""
    world: Any = None
    """The environment of all requests, a `worlds.World`; None: they are not played."""
    hold: bool = False
    """Keep ended sequences in their slots until `extend` or `release`, while there is room for an
    observation of one token and an answer of one."""
    draft: DraftModel | None = None
    """Of `SamplerConfig.drafts` model."""

    @property
    def models(self) -> slot.Models:
        """All decoders: the policy, those of the guide, and the one that drafts."""
        return (self.config, *self.guide.models, *(d.model for d in (self.draft,) if d))

    @property
    def drafter(self) -> Drafter | None:
        """What samples drafts; None: they are looked up, or there are none."""
        if self.sampler.drafts == "layers":
            return Drafter(0, self.sampler.draft_layers)
        return Drafter(len(self.models) - 1, self.draft.model.num_layers) if self.draft else None

    def with_others(self, params: Params) -> tuple[Params, ...]:
        """Parameters of all decoders, given the policy's."""
        return (params, *self.guide.params, *(d.params for d in (self.draft,) if d))

    @property
    def shards(self) -> int:
        """Parts that the mesh in use cuts slots and rows of prompts into."""
        return slot.parts(self.models)

    @property
    def rows(self) -> int:
        """Prompts prefilled at once."""
        return -(-self.sampler.prefill_rows // self.shards) * self.shards

    @property
    def prompt_width(self) -> int:
        """Width of prefilled caches."""
        piece = self.sampler.prefill_piece
        width = round_up(self.max_prompt, 16)
        return width if width <= piece else round_to_eighth(self.max_prompt, piece)

    @property
    def piece(self) -> int:
        """Most tokens of a prompt, or of an observation, read in one pass."""
        return min(self.sampler.prefill_piece, self.prompt_width)

    @property
    def capacity(self) -> int:
        """Greatest width of the slots' caches."""
        return max(self.prompt_width, round_to_eighth(self.max_length, self.sampler.bucket))

    @property
    def sizes(self) -> list[int]:
        """Numbers of slots that there may be, see `slot_counts`."""
        return slot_counts(self.sampler.slots, self.shards)

    @property
    def widths(self) -> list[int]:
        """Widths that caches may have, ascending: each twice the one before, but for the last."""
        capacity = self.capacity
        values = [min(self.sampler.bucket, capacity)]
        while 8 * capacity > 9 * values[-1]:
            values.append(min(2 * values[-1], capacity))
        return [*values[:-1], capacity]

    @property
    def shapes(self) -> dict[int, list[int]]:
        """Widths that the caches of each number of slots may have, ascending.

        A quarter of all slots, or fewer, have every second width: their caches, up to four times as
        wide as needed, are no larger than those of all slots. It halves the number of programs.
        """
        wide, sizes = self.widths, self.sizes
        return {n: wide if n in sizes[-2:] else wide[::-2][::-1] for n in sizes}

    def width(self, slots: int, least: int) -> int:
        """The least width of at least `least` positions that caches of `slots` slots may have."""
        return next(width for width in self.shapes[slots] if width >= least)


def slot_counts(slots: int, shards: int = 1) -> list[int]:
    """Numbers of slots that there may be, ascending: all, half, then a quarter each time.

    Args:
      slots: asked for; rounded up to a multiple of `shards`, as each number is.
      shards: parts that slots are cut into.
    """
    shard_counts = [-(-slots // shards)]
    while (fewer := shard_counts[-1] // (2 if len(shard_counts) < 3 else 4)) * shards >= SMALLEST:
        shard_counts.append(fewer)
    return [n * shards for n in reversed(shard_counts)]


def route(setup: Setup, start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Slots and cache widths to go through, each one of `warm_up.neighbours` of the one before."""
    (size, width), (last, goal) = start, end
    # what makes caches smaller comes first
    first = setup.width(size, goal) if last > size else width
    shapes = [(size, w) for w in _between(setup.shapes[size], width, first)]
    for slots in _between(setup.sizes, size, last):
        first = setup.width(slots, first)
        shapes.append((slots, first))
    return shapes + [(last, w) for w in _between(setup.shapes[last], first, goal)]


def _between(buckets: list[int], start: int, end: int) -> list[int]:
    """The buckets after `start` on the way to `end`."""
    first, last = buckets.index(start), buckets.index(end)
    step = 1 if last > first else -1
    return [buckets[i] for i in range(first + step, last + step, step)]


@dataclasses.dataclass
class Seat:
    """The host's view of one occupied slot."""

    request: Request
    length: int
    turn: int
    """Where the current turn of the policy starts."""
    read: list[int] = dataclasses.field(default_factory=list)
    """Tokens of the turn that stop strings have been looked for in."""
    matcher: Any = None
    """Of the request's constraint, once it has read all tokens of the turn; None: not yet."""
    observed: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Spans of observations, as positions in the sequence."""
    held: Completion | None = None
    """What it holds, where it waits for `extend` or `release`."""
    overread: bool = False
    """Its slot has read tokens that were then cut off, which a recurrent state cannot forget."""

    @property
    def room(self) -> int:
        """Tokens that may still be appended."""
        return len(self.request.prompt) + self.request.max_new_tokens - self.length


@dataclasses.dataclass
class Work:
    """Sequences in progress, and requests that wait for a slot; changed in place."""

    slots: slot.SlotState | None = None
    seats: list[Seat | None] = dataclasses.field(default_factory=list)
    queue: deque[Request] = dataclasses.field(default_factory=deque)
    verified: int = 0
    """Drafts verified so far."""
    accepted: int = 0
    """Tokens of drafts accepted so far."""
    verified_beside: int = 0
    """Drafts verified so far that were found in completions of the same prompt."""
    accepted_beside: int = 0
    """Tokens of these accepted so far."""
    texts: Texts = dataclasses.field(default_factory=Texts)
    """Completions that drafts are looked up in, where `SamplerConfig.drafts_beside`."""
    prefixes: Prefixes = dataclasses.field(default_factory=Prefixes)
    """Of `SamplerConfig.prefix_cache`."""
    cached: int = 0
    """Tokens of prompts so far that were not read, as the prefix cache had them."""
    blocks: int = 0
    """Blocks of prompts read so far for the prefix cache."""
    cached_by_id: dict[int, int] = dataclasses.field(default_factory=dict)
    """Tokens of its prompt that the prefix cache had, of each request that the last call of
    `advance` has begun."""

    def __bool__(self) -> bool:
        """Whether anything is left to decode."""
        return bool(self.queue) or any(s is not None and s.held is None for s in self.seats)

    @property
    def state(self) -> slot.SlotState:
        """The slots, once there are some."""
        assert self.slots is not None
        return self.slots

    def seat(self, i: int) -> Seat:
        """Who is in slot `i`, which is not free."""
        seat = self.seats[i]
        assert seat is not None
        return seat


def find_stops(setup: Setup, work: Work, active: list[int]) -> dict[int, int]:
    """Slots whose turn completed a stop string, and the length at which it did."""
    watched, stop_lengths = {i: s for i in active if (s := work.seat(i)).request.stop}, {}
    starts = [seat.turn + len(seat.read) for seat in watched.values()]
    ends = [seat.length for seat in watched.values()]
    spans = _fetch(setup, (work.state.tokens,), [*watched], starts, ends)
    for (i, seat), (tokens,) in zip(watched.items(), spans, strict=True):
        if end := _completed(setup, seat, tokens.tolist()):
            seat.overread = seat.turn + end < seat.length
            stop_lengths[i] = seat.length = seat.turn + end
    return stop_lengths


def _completed(setup: Setup, seat: Seat, new: list[int]) -> int | None:
    """Tokens of the turn by which a stop string is complete, if it is, after `new` ones.

    Text is decoded from some tokens before the new ones, not from the start of the turn: those give
    as many characters as a string has, and some more, as the first may be parts of characters.
    """
    stops, read_count, decode = seat.request.stop, len(seat.read), setup.text
    assert decode is not None  # `submit` refuses stop strings without
    seat.read += new
    back = min_characters = max(map(len, stops)) + 8
    while (
        back < read_count
        and len(decode(seat.read[read_count - back : read_count])) < min_characters
    ):
        back *= 2
    first = max(0, read_count - back)

    def complete(count: int) -> bool:
        text = decode(seat.read[first:count])
        return any(string in text for string in stops)

    if not complete(len(seat.read)):
        return None
    ends = range(read_count + 1, len(seat.read))
    return next((n for n in ends if complete(n)), len(seat.read))


def read_out(
    setup: Setup, work: Work, chosen: list[int], stopped: Mapping[int, int]
) -> list[Completion]:
    """What the slots `chosen` hold."""
    seats = [work.seat(i) for i in chosen]
    arrays = _recorded(work.state) if seats else ()
    starts, ends = [len(t.request.prompt) for t in seats], [t.length for t in seats]
    spans = _fetch(setup, arrays, chosen, starts, ends)
    return [
        _completion(setup, seat, span, i in stopped)
        for i, seat, span in zip(chosen, seats, spans, strict=True)
    ]


def warm_up_reading(setup: Setup, slots: slot.SlotState) -> None:
    """Compile what `read_out` and `find_stops` may need of this many slots."""
    none = np.zeros(_ROWS, np.int32)
    for width in setup.widths:
        slot.peek(setup.models, _recorded(slots), none, none, width=width)
        if setup.text:
            slot.peek(setup.models, (slots.tokens,), none, none, width=width)


def _recorded(s: slot.SlotState) -> tuple[jax.Array, ...]:
    arrays = (s.tokens, s.logp, s.entropy, s.version, s.top_ids, s.top_logp)
    return arrays if s.support is None else (*arrays, s.support)


def _fetch(
    setup: Setup,
    arrays: Sequence[jax.Array],
    rows: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
) -> list[list[np.ndarray]]:
    """Positions `starts[n]` to `ends[n]` of slots `rows[n]`, as host arrays.

    The arrays are copied to the host whole where that is at most twice as much as is needed, since
    each span costs a transfer of its own.

    Args:
      setup: of the work.
      arrays: [S, M, ...] each.
      rows, starts, ends: N of each.

    Returns:
      N lists of an array [end - start, ...] for each of `arrays`.
    """
    if not rows:
        return []
    offset = np.array(starts, np.int32)
    counts = np.array(ends, np.int32) - offset
    parts = [slice(n, n + _ROWS) for n in range(0, len(rows), _ROWS)]
    buckets = setup.widths
    widths = [next(w for w in buckets if w >= counts[part].max()) for part in parts]
    slots, length = arrays[0].shape[:2]
    if slots * length <= 2 * _ROWS * sum(widths):
        host_arrays = mesh.fetch(arrays)
        return [
            [a[row, start:end].copy() for a in host_arrays]
            for row, start, end in zip(rows, starts, ends, strict=True)
        ]
    device_spans = []
    for part, width in zip(parts, widths, strict=True):
        first = np.minimum(offset[part], length - width)
        room = (0, _ROWS - len(first))
        at = np.pad(np.array(rows[part], np.int32), room), np.pad(first, room)
        device_spans.append(slot.peek(setup.models, arrays, *at, width=width))
        offset[part] -= first
    fetched = mesh.fetch(device_spans)
    return [
        [a[n % _ROWS, offset[n] : offset[n] + counts[n]].copy() for a in fetched[n // _ROWS]]
        for n in range(len(rows))
    ]


def _completion(
    setup: Setup, seat: Seat, arrays: Sequence[np.ndarray], by_string: bool
) -> Completion:
    request, start = seat.request, len(seat.request.prompt)
    tokens, logp, entropy, version, top_ids, top_logp, *supports = arrays
    source = np.zeros(len(tokens), np.int8)
    for first, last in seat.observed:
        source[first - start : last - start] = Source.OBSERVATION
    prefix_size = 0
    if request.prefix is not None:
        prefix_size = len(request.prefix.tokens)
        source[:prefix_size] = request.prefix.source
    outside = source != Source.POLICY
    outside[:prefix_size] = True
    for array in (logp, entropy, version):
        array[outside] = 0
    top_ids[outside], top_logp[outside] = -1, 0
    for support in supports:
        support[outside] = 0
    if request.prefix is not None:
        p = request.prefix
        logp[:prefix_size], entropy[:prefix_size], version[:prefix_size] = (
            p.logp,
            p.entropy,
            p.version,
        )
        for support in supports:
            if p.support is not None:
                support[:prefix_size] = p.support
    by_token = len(tokens) > prefix_size and int(tokens[-1]) in setup.stop_ids
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
        support=supports[0] if supports else None,
    )
