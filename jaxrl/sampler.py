"""The sampler: continuous batching over a fixed set of slots, refilled between chunks of decoding.

`generate` samples a list of requests. Whoever needs more control (budgets, other weights halfway,
turns of an environment, a server) drives the same machine by hand: `submit` requests to a `Work`,
`advance` it as often as wanted, `extend` or `release` what is held, `unfinished` and `resume` what
shall go on elsewhere. Nothing is compiled anew once each bucket has been seen.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import logits as processors
from jaxrl import slots as slot
from jaxrl.logits import Guide
from jaxrl.requests import (
    check_guide,
    check_requests,
    features_of,
    resume,
    settings_of,
    start_of,
)
from jaxrl.slots import Features, round_up
from jaxrl.types import Completion, Params, Prefix, Request, Source
from models.config import DecoderConfig

_SMALLEST = 4  # slots; fewer decode no faster


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
    def capacity(self) -> int:
        """Width of the slots' caches."""
        return max(self.prompt_width, round_up(self.max_length, self.sampler.bucket))


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


def generate(
    config: DecoderConfig,
    params: Params,
    requests: Sequence[Request],
    *,
    stop_ids: Sequence[int],
    key: jax.Array,
    version: int = 0,
    sampler: SamplerConfig = SamplerConfig(),
    max_prompt: int = 0,
    max_length: int = 0,
    features: Features = Features(),
    guide: Guide = Guide(processors.keep),
    text: Callable[[Sequence[int]], str] | None = None,
    observe: Callable[[Completion], Sequence[int] | None] | None = None,
) -> Iterator[Completion]:
    """Sample all requests; yields each completion as soon as it is finished.

    Requests that share a prompt should stand together: the prompt is then prefilled once.

    Args:
      config: the decoder's shape.
      params: as from `decoder.unstack`, in the dtype to sample in.
      requests: any number, of any lengths.
      stop_ids: tokens that end a sequence.
      key: typed PRNG key.
      version: policy version recorded with each token.
      sampler: memory layout.
      max_prompt: longest prompt of any call, so that calls share compiled shapes; 0: of this one.
      max_length: longest prompt plus completion of any call, likewise.
      features: what requests of other calls ask for, likewise.
      guide: steers the logits.
      text: decodes tokens, needed for stop strings.
      observe: called with each completion that stopped; tokens that it returns are appended and
        the policy takes another turn. None, or what leaves no room for a turn, ends the sequence.

    Raises:
      ValueError: a request that cannot be sampled; see `requests.check_requests`.
    """
    if not requests:
        check_requests(config, requests)
        return
    setup = Setup(
        config,
        key,
        tuple(stop_ids),
        max(max_prompt, *(len(start_of(r)) for r in requests)),
        max(max_length, *(len(r.prompt) + r.max_new_tokens for r in requests)),
        sampler,
        features_of(requests, features),
        guide,
        text,
        hold=observe is not None,
    )
    work = Work()
    submit(setup, work, requests)
    while work:
        turns: dict[int, Sequence[int]] = {}
        for completion in advance(setup, params, work, version=version):
            more = observe(completion) if observe and completion.stopped else None
            room = completion.request.max_new_tokens - len(completion.tokens)
            if more and len(more) < room:
                turns[completion.request.id] = more
            else:
                release(work, [completion.request.id])
                yield completion
        extend(setup, params, work, turns)


def submit(setup: Setup, work: Work, requests: Sequence[Request]) -> None:
    """Queue requests.

    Raises:
      ValueError: a request that cannot be sampled, or does not fit the setup.
    """
    check_requests(setup.config, requests, max_length=setup.max_length)
    check_guide(setup.config, setup.guide)
    for r in requests:
        if len(start_of(r)) > setup.max_prompt:
            raise ValueError(
                f"request {r.id}: {len(start_of(r))} tokens of prompt and prefix exceed max_prompt="
                f"{setup.max_prompt}; raise it"
            )
        if features_of([r], setup.features) != setup.features:
            raise ValueError(
                f"request {r.id} asks for {features_of([r])}, but features={setup.features}; "
                "make the setup with the features of all its requests"
            )
        if r.stop and setup.text is None:
            raise ValueError(f"request {r.id}: stop={r.stop} needs text, to decode tokens with")
    ids = [s.request.id for s in work.seats if s] + [r.id for r in (*work.queue, *requests)]
    if setup.hold and len(set(ids)) < len(ids):
        raise ValueError("two requests have the same id; held sequences are told apart by it")
    work.queue.extend(requests)


def advance(
    setup: Setup,
    params: Params,
    work: Work,
    *,
    version: int = 0,
    budget: int | None = None,
) -> list[Completion]:
    """Fill free slots, decode one chunk, and hand out what has ended.

    Args:
      setup: the same on every call.
      params: as from `decoder.unstack`. They may differ from those of the call before: what a slot
        remembers of earlier tokens then stays as the earlier weights computed it; `refresh`
        computes it anew.
      work: changed in place.
      version: policy version recorded with each token.
      budget: stop after about this many tokens in all; at least one step is made.

    Returns:
      Completions whose sequence has ended, or, when `setup.hold`, its turn.
    """
    everything = (params, *setup.guide.params)
    _resize(setup, work)
    while work.queue and None in work.seats:
        _admit(setup, everything, work)
    active = [i for i, s in enumerate(work.seats) if s is not None and not s.held]
    if not active:
        return []
    seats, total = work.seats, len(work.seats)
    longest = max(seats[i].length for i in active)
    window = min(round_up(longest + 1, setup.sampler.bucket), setup.capacity)
    steps = min(setup.sampler.chunk, window - longest)
    if budget is not None:
        steps = max(1, min(steps, budget // len(active)))
    # Refill or halve as soon as it pays: a quarter free with work waiting, half free without.
    min_live = max(1, len(active) - total // 4 + 1 if work.queue else total // 2 + 1)
    if total <= _SMALLEST and not work.queue:
        min_live = 1
    work.slots = slot.decode(
        setup.models,
        everything,
        work.slots,
        key=setup.key,
        version=jnp.int32(version),
        stop_ids=jnp.asarray(setup.stop_ids, jnp.int32),
        steps=jnp.int32(steps),
        min_live=jnp.int32(min(min_live, len(active))),
        args=setup.guide.args,
        process=setup.guide.process,
        features=_needed(setup, [seats[i].request for i in active]),
        window=window,
    )
    live, length = (np.array(a) for a in jax.device_get((work.slots.live, work.slots.length)))
    before = [0 if s is None else s.length for s in seats]
    for i in active:
        seats[i].length = int(length[i])
    stopped = _find_stops(setup, work, active, before)
    if stopped:
        length[list(stopped)], live[list(stopped)] = list(stopped.values()), False
        work.slots = slot.settle(work.slots, length, live)
    ended = [i for i in active if not live[i]]
    completions = _completions(setup, work, ended, stopped)
    for i in ended:
        seats[i].held = setup.hold
        if not setup.hold:
            seats[i] = None
    return completions


def unfinished(setup: Setup, work: Work) -> list[Completion]:
    """What stands in the slots, and requests that wait, each as far as it has come."""
    active = [i for i, s in enumerate(work.seats) if s is not None and not s.held]
    started = _completions(setup, work, active, {})
    started = [dataclasses.replace(c, finished=False, stopped=False) for c in started]
    empty = np.zeros(0, np.float32)
    waiting = []
    for request in work.queue:
        p = request.prefix or Prefix(*[empty] * 5)
        kinds = (np.int32, np.float32, np.float32, np.int32, np.int8)
        tokens, logp, entropy, version, source = (
            a.astype(k) for a, k in zip(p, kinds, strict=True)
        )
        waiting.append(
            Completion(request, tokens, logp, entropy, version, False, source, finished=False)
        )
    return started + waiting


def release(work: Work, ids: Sequence[int]) -> None:
    """Free the slots of held sequences, and call off those under way or waiting."""
    gone = set(ids)
    out = [i for i, s in enumerate(work.seats) if s is not None and s.request.id in gone]
    if any(not work.seats[i].held for i in out):
        length, live = (np.array(a) for a in jax.device_get((work.slots.length, work.slots.live)))
        live[out] = False
        work.slots = slot.settle(work.slots, length, live)
    for i in out:
        work.seats[i] = None
    if any(r.id in gone for r in work.queue):
        work.queue = deque(r for r in work.queue if r.id not in gone)


def extend(
    setup: Setup, params: Params, work: Work, observations: Mapping[int, Sequence[int]]
) -> None:
    """Append observations to held sequences, by request id; the policy goes on after them.

    Their history is not read again. Observation tokens carry `Source.OBSERVATION`.

    Raises:
      ValueError: an unknown id, an empty observation, or one that leaves no room for a token.
    """
    seats = {s.request.id: i for i, s in enumerate(work.seats) if s is not None and s.held}
    for name, tokens in observations.items():
        if name not in seats:
            raise ValueError(f"request {name} is not held; held are {sorted(seats)}")
        seat = work.seats[seats[name]]
        room = len(seat.request.prompt) + seat.request.max_new_tokens - seat.length
        if not 0 < len(tokens) < room:
            raise ValueError(
                f"request {name}: an observation of {len(tokens)} tokens, but there is room for 1 "
                f"to {room - 1}; shorten it, or raise max_new_tokens={seat.request.max_new_tokens}"
            )
    rows, everything = setup.sampler.prefill_rows, (params, *setup.guide.params)
    names = list(observations)
    for first in range(0, len(names), rows):
        group = names[first : first + rows]
        width = min(round_up(max(len(observations[n]) for n in group), 16), _piece(setup))
        for start in range(0, max(len(observations[n]) for n in group), width):
            target = np.full(rows, len(work.seats), np.int32)
            tokens, count = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
            for row, name in enumerate(group):
                part = list(observations[name][start : start + width])
                if part:
                    target[row] = seats[name]
                    tokens[row, : len(part)], count[row] = part, len(part)
                    work.seats[seats[name]].length += len(part)
            longest = max(work.seats[seats[n]].length for n in group)
            window = min(round_up(longest, setup.sampler.bucket), setup.capacity)
            work.slots = slot.append(
                setup.models, everything, work.slots, target, tokens, count, window=window
            )
        for name in group:
            seat = work.seats[seats[name]]
            seat.observed.append((seat.length - len(observations[name]), seat.length))
            seat.turn, seat.held = seat.length, False


def refresh(setup: Setup, params: Params, work: Work) -> None:
    """After a weight update: what slots remember is computed anew under `params`.

    Unfinished sequences go back to the head of the queue, as `requests.resume` makes them.

    Raises:
      ValueError: sequences are held; extend or release them first.
    """
    if any(s is not None and s.held for s in work.seats):
        raise ValueError("sequences are held; extend or release them before refresh")
    again = [resume(c) for c in unfinished(setup, work)]
    fresh = Work()
    submit(setup, fresh, again)
    work.slots, work.seats, work.queue = None, [], fresh.queue


def _needed(setup: Setup, live: Sequence[Request]) -> Features:
    """The features to decode with. What is left out keeps its place in the slots."""
    full, asked = setup.features, features_of(live)
    if not setup.lean:
        return full
    return dataclasses.replace(
        asked, biases=full.biases if asked.biases else 0, top=full.top if asked.top else 0
    )


def _piece(setup: Setup) -> int:
    return min(setup.sampler.prefill_piece, setup.prompt_width)


def _resize(setup: Setup, work: Work) -> None:
    """Grow towards what is queued; halve when half are free, so a tail pays for itself alone."""
    occupied = [i for i, s in enumerate(work.seats) if s is not None]
    total = len(work.seats)
    wanted = min(setup.sampler.slots, round_up(len(occupied) + len(work.queue), _SMALLEST))
    if not work.queue and len(occupied) > total // 2:
        return
    if wanted == total or (work.queue and wanted < total):
        return
    if not occupied and (work.slots is None or wanted > total):
        work.slots = slot.empty_slots(setup.models, wanted, setup.capacity, setup.features)
    else:
        chosen = np.array((occupied + [0] * wanted)[:wanted], np.int32)
        work.slots = slot.resize(work.slots, chosen, np.int32(len(occupied)))
    kept = [work.seats[i] for i in occupied]
    work.seats = kept + [None] * (wanted - len(kept))


def _admit(setup: Setup, params: tuple[Params, ...], work: Work) -> None:
    """Move requests of up to `prefill_rows` distinct prompts from the queue into free slots."""
    rows, total = setup.sampler.prefill_rows, len(work.seats)
    free = [i for i, s in enumerate(work.seats) if s is None]
    starts: dict[tuple[int, ...], int] = {}
    taken: list[Request] = []
    source = np.zeros(total, np.int32)
    while work.queue and len(taken) < len(free):
        start = start_of(work.queue[0])
        if start not in starts and len(starts) == rows:
            break
        source[len(taken)] = starts.setdefault(start, len(starts))
        taken.append(work.queue.popleft())

    tokens = np.zeros((rows, setup.prompt_width), np.int32)
    length = np.zeros(rows, np.int32)
    for start, row in starts.items():
        tokens[row, : len(start)] = start
        length[row] = len(start)
    target = np.full(total, total, np.int32)
    target[: len(taken)] = free[: len(taken)]

    def column(values: list[Any], dtype: Any) -> np.ndarray:
        return np.array(values + [0] * (total - len(values)), dtype)

    new = {
        "tokens": tokens[source],
        "length": length[source],
        "limit": column([len(r.prompt) + r.max_new_tokens for r in taken], np.int32),
        "request": column([r.id & 0xFFFFFFFF for r in taken], np.uint32),
        "settings": settings_of(taken, setup.config.vocab_size, total, setup.features.biases),
    }
    prefix = slot.prefill(setup.models, params, tokens, length, piece=_piece(setup))
    work.slots = slot.insert(work.slots, prefix, source, target, new)
    for request, i in zip(taken, free, strict=False):
        given = len(start_of(request))
        marks = np.zeros(0, np.int8) if request.prefix is None else request.prefix.source
        others = np.flatnonzero(marks != Source.POLICY)
        turn = len(request.prompt) + (int(others[-1]) + 1 if len(others) else 0)
        work.seats[i] = Seat(request, given, turn)


def _find_stops(setup: Setup, work: Work, active: list[int], before: list[int]) -> dict[int, int]:
    """Slots whose turn completed a stop string, and the length at which it did."""
    watched = [i for i in active if work.seats[i].request.stop]
    if not watched:
        return {}
    tokens, found = jax.device_get(work.slots.tokens), {}
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


def _completions(
    setup: Setup, work: Work, chosen: list[int], stopped: Mapping[int, int]
) -> list[Completion]:
    """What the slots `chosen` hold."""
    if not chosen:
        return []
    s = work.slots
    arrays = jax.device_get((s.tokens, s.logp, s.entropy, s.version, s.top_ids, s.top_logp))
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
