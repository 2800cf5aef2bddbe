"""The sampler: continuous batching over a fixed set of slots, refilled between chunks of decoding.

`generate` samples a list of requests. Whoever needs more control (budgets, other weights halfway,
turns of an environment, a server) drives the same machine by hand: `submit` requests to a `Work`,
`advance` it as often as wanted, `extend` or `release` what is held, `unfinished` and
`requests.resume` what shall go on elsewhere. Nothing is compiled anew once each bucket has been
seen.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import logits as processors
from jaxrl import mesh
from jaxrl import slots as slot
from jaxrl.buckets import round_up
from jaxrl.logits import Guide
from jaxrl.requests import (
    check_guide,
    check_requests,
    features_of,
    resume,
    settings_of,
    start_of,
)
from jaxrl.slots import Features
from jaxrl.types import Completion, Params, Prefix, Request, Source
from jaxrl.work import SMALLEST, SamplerConfig, Seat, Setup, Work, find_stops, read_out
from models.config import DecoderConfig


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
                if setup.hold:
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
    _make_room(setup, work)
    while work.queue and None in work.seats:
        _admit(setup, everything, work)
    active = [i for i, s in enumerate(work.seats) if s is not None and not s.held]
    if not active:
        return []
    seats, total = work.seats, len(work.seats)
    longest = max(seats[i].length for i in active)
    steps = min(setup.sampler.chunk, work.slots.width - longest)
    if budget is not None:
        steps = max(1, min(steps, budget // len(active)))
    # Refill or halve as soon as it pays: an eighth free with work waiting, half free without.
    min_live = max(1, len(active) - total // 8 + 1 if work.queue else total // 2 + 1)
    if total <= SMALLEST and not work.queue:
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
    )
    live, length = (np.array(a) for a in mesh.fetch((work.slots.live, work.slots.length)))
    before = [0 if s is None else s.length for s in seats]
    for i in active:
        seats[i].length = int(length[i])
    stopped = find_stops(setup, work, active, before)
    if stopped:
        length[list(stopped)], live[list(stopped)] = list(stopped.values()), False
        work.slots = slot.settle(work.slots, length, live)
    ended = [i for i in active if not live[i]]
    completions = read_out(setup, work, ended, stopped)
    for i in ended:
        seats[i].held = setup.hold
        if not setup.hold:
            seats[i] = None
    return completions


def unfinished(setup: Setup, work: Work) -> list[Completion]:
    """What stands in the slots, and requests that wait, each as far as it has come."""
    active = [i for i, s in enumerate(work.seats) if s is not None and not s.held]
    started = read_out(setup, work, active, {})
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
        length, live = (np.array(a) for a in mesh.fetch((work.slots.length, work.slots.live)))
        live[out] = False
        work.slots = slot.settle(work.slots, length, live)
    for i in out:
        work.seats[i] = None
    waiting = [r for r in work.queue if r.id not in gone]
    work.queue.clear()
    work.queue.extend(waiting)


def extend(
    setup: Setup, params: Params, work: Work, observations: Mapping[int, Sequence[int]]
) -> None:
    """Append observations to held sequences, by request id; the policy goes on after them.

    Their history is not read again. Observation tokens carry `Source.OBSERVATION`.

    Raises:
      ValueError: an unknown id, an empty observation, or one that leaves no room for a token.
    """
    seats = _held(work)
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
    if names:
        after = [
            s.length + len(observations.get(s.request.id, ())) for s in work.seats if s is not None
        ]
        _reshape(setup, work, len(work.seats), max(after))
        seats = _held(work)
    for first in range(0, len(names), rows):
        group = names[first : first + rows]
        width = min(round_up(max(len(observations[n]) for n in group), 16), setup.piece)
        for start in range(0, max(len(observations[n]) for n in group), width):
            target = np.full(rows, len(work.seats), np.int32)
            tokens, count = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
            for row, name in enumerate(group):
                part = list(observations[name][start : start + width])
                if part:
                    target[row] = seats[name]
                    tokens[row, : len(part)], count[row] = part, len(part)
                    work.seats[seats[name]].length += len(part)
            work.slots = slot.append(setup.models, everything, work.slots, target, tokens, count)
        for name in group:
            seat = work.seats[seats[name]]
            seat.observed.append((seat.length - len(observations[name]), seat.length))
            seat.turn, seat.held = seat.length, False


def refresh(setup: Setup, params: Params, work: Work) -> None:
    """After a weight update: what slots remember is computed anew under `params`.

    Unfinished sequences go back to the head of the queue, as `requests.resume` makes them.

    Raises:
      ValueError: sequences are held, so extend or release them first; or one has come further than
        `setup.max_prompt`, which should be `max_length` where sequences are to be refreshed.
    """
    if any(s is not None and s.held for s in work.seats):
        raise ValueError("sequences are held; extend or release them before refresh")
    again = [resume(c) for c in unfinished(setup, work)]
    fresh = Work()
    submit(setup, fresh, again)
    work.slots, work.seats, work.queue = None, [], fresh.queue


def _held(work: Work) -> dict[int, int]:
    """Where held sequences are, by request id."""
    return {s.request.id: i for i, s in enumerate(work.seats) if s is not None and s.held}


def _needed(setup: Setup, live: Sequence[Request]) -> Features:
    """The features to decode with. What is left out keeps its place in the slots."""
    full, asked = setup.features, features_of(live)
    if not setup.lean:
        return full
    return dataclasses.replace(
        asked, biases=full.biases if asked.biases else 0, top=full.top if asked.top else 0
    )


def _make_room(setup: Setup, work: Work) -> None:
    """Grow towards what is queued; halve when half are free, so a tail pays for itself alone."""
    occupied, total = [s for s in work.seats if s is not None], len(work.seats)
    wanted = min(setup.sampler.slots, round_up(len(occupied) + len(work.queue), SMALLEST))
    if wanted < total and (work.queue or len(occupied) > total // 2):
        wanted = total
    coming = itertools.islice(work.queue, wanted - len(occupied))
    lengths = [s.length for s in occupied] + [len(start_of(r)) for r in coming]
    _reshape(setup, work, wanted, max(lengths, default=0))


def _reshape(setup: Setup, work: Work, total: int, longest: int) -> None:
    """Have `total` slots, whose caches have room for one token more than `longest`.

    It goes by way of the buckets between: few programs lead from each to the next.
    """
    width = next(w for w in setup.widths if w > longest)
    kept = [i for i, s in enumerate(work.seats) if s is not None]
    if not kept and (work.slots is None or (total, width) != (len(work.seats), work.slots.width)):
        work.slots = slot.empty_slots(setup.models, total, setup.capacity, width, setup.features)
        work.seats = [None] * total
    steps = [(len(work.seats), w) for w in _path(setup.widths, work.slots.width, width)]
    steps += [(size, width) for size in _path(setup.sizes, len(work.seats), total)]
    for size, wide in steps:
        kept = [i for i, s in enumerate(work.seats) if s is not None]
        chosen = np.array((kept + [0] * size)[:size], np.int32)
        work.slots = slot.resize(setup.models, work.slots, chosen, np.int32(len(kept)), width=wide)
        work.seats = [work.seats[i] for i in kept] + [None] * (size - len(kept))


def _path(buckets: list[int], start: int, end: int) -> list[int]:
    """The buckets after `start` on the way to `end`."""
    first, last = buckets.index(start), buckets.index(end)
    step = 1 if last > first else -1
    return [buckets[i] for i in range(first + step, last + step, step)]


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
    prefix = slot.prefill(setup.models, params, tokens, length, piece=setup.piece)
    work.slots = slot.insert(setup.models, work.slots, prefix, source, target, new)
    for request, i in zip(taken, free, strict=False):
        given = len(start_of(request))
        marks = np.zeros(0, np.int8) if request.prefix is None else request.prefix.source
        others = np.flatnonzero(marks != Source.POLICY)
        turn = len(request.prompt) + (int(others[-1]) + 1 if len(others) else 0)
        work.seats[i] = Seat(request, given, turn)
