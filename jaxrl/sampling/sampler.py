"""The sampler: continuous batching over a fixed set of slots, refilled between chunks of decoding.

`generate` samples a list of requests. Whoever needs more control (budgets, other weights halfway,
turns of an environment, a server) drives the same machine by hand: `submit` requests to a `Work`,
`advance` it as often as wanted, `extend` or `release` what is held, `unfinished` and
`requests.resume` sequences to continue elsewhere. No program is compiled after each bucket has been
seen once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh import mesh
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import admission, constraints, decode, drafts, prefixes
from jaxrl.sampling import logits as processors
from jaxrl.sampling import slots as slot
from jaxrl.sampling.drafts import DraftModel
from jaxrl.sampling.logits import Guide
from jaxrl.sampling.requests import (
    check_drafts,
    check_guide,
    check_requests,
    features_of,
    resume,
    start_of,
)
from jaxrl.sampling.slots import Features
from jaxrl.sampling.work import SamplerConfig, Seat, Setup, Work, find_stops, read_out
from jaxrl.types import Completion, OutputConstraint, Params, Prefix, Request


class SlotsHeld(RuntimeError):
    """Requests wait, but every slot is held; a sequence must be released or extended first."""


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
    draft: DraftModel | None = None,
    text: Callable[[Sequence[int]], str] | None = None,
    matchers: Callable[[OutputConstraint], Any] | None = None,
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
      draft: the model that drafts, where `SamplerConfig.drafts` is `model`.
      text: decodes tokens, needed for stop strings.
      matchers: begins to match constraints, see `constraints.matchers`; needed where requests have
        one.
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
        matchers,
        hold=observe is not None,
        draft=draft,
    )
    work = Work()
    submit(setup, work, requests)
    while work:
        turns: dict[int, Sequence[int]] = {}
        for completion in advance(setup, params, work, version=version):
            observation = observe(completion) if observe and completion.stopped else None
            room = completion.request.max_new_tokens - len(completion.tokens)
            if observation and len(observation) < room:
                turns[completion.request.id] = observation
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
    if setup.sampler.most_drafted:
        name, layers = setup.sampler.drafts, setup.sampler.draft_layers
        check_drafts(setup.config, name, layers, setup.draft, setup.world)
    if mib := setup.sampler.prefix_cache:
        prefixes.check(mib, setup.sampler.prefix_block, setup.models)
    for r in requests:
        if len(start_of(r)) > setup.max_prompt:
            raise ValueError(
                f"request {r.id}: {len(start_of(r))} tokens of prompt and prefix exceed max_prompt="
                f"{setup.max_prompt}; raise it"
            )
        if r.stop and setup.text is None:
            raise ValueError(f"request {r.id}: stop={r.stop} needs text, to decode tokens with")
        if r.constraint is not None:
            constraints.check(setup, r)
    if features_of(requests, setup.features) != setup.features:
        r = next(r for r in requests if features_of([r], setup.features) != setup.features)
        raise ValueError(
            f"request {r.id} asks for {features_of([r])}, but features={setup.features}; "
            "make the setup with the features of all its requests"
        )
    ids = [s.request.id for s in work.seats if s] + [r.id for r in (*work.queue, *requests)]
    if setup.hold and len(set(ids)) < len(ids):
        raise ValueError("two requests have the same id; held sequences are identified by it")
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
      Completions whose sequence has ended, or, when `setup.hold`, its turn. A sequence is then held
      if there is room for an observation and an answer to it; else its slot is free again.

    Raises:
      SlotsHeld: requests wait, but all slots are held; see `blocked`.
      FloatingPointError: the logits of a sequence gave no distribution. Once it has been released
        the others can continue.
    """
    everything = setup.with_others(params)
    work.cached_by_id.clear()
    admission.make_room(setup, work)
    while work.queue and None in work.seats:
        admission.admit(setup, everything, work)
    active = [i for i, s in enumerate(work.seats) if s is not None and s.held is None]
    if not active and work.queue:
        raise SlotsHeld(
            f"{len(work.queue)} requests wait, and all slots ({len(work.seats)}) are held, by "
            f"requests {sorted(held_slots(work))}; extend or release one of them before advance, "
            f"or raise sampler.slots={setup.sampler.slots}"
        )
    if not active:
        return []
    seats, total = {i: work.seat(i) for i in active}, len(work.seats)
    longest = max(seat.length for seat in seats.values())
    steps = min(setup.sampler.chunk, work.state.width - longest)
    if budget is not None:
        steps = max(1, min(steps, budget // len(active)))
    draft_tokens = setup.sampler.most_drafted
    allowed = None if setup.matchers is None else constraints.allowed(setup, work, active)
    if allowed is not None:
        steps, draft_tokens = 1, 0  # the next ones follow from the token
    cost, texts = 1.0, None
    if draft_tokens:
        draft_share = drafts.share(setup.drafter, everything)
        cost = drafts.price(setup.models, total // setup.shards, draft_tokens, draft_share)
    if draft_tokens and setup.sampler.drafts_beside:
        requests = [None if seat is None else seat.request for seat in work.seats]
        texts = drafts.lay_out(work.texts, requests, setup.capacity)
    # Refill or shrink as soon as it pays: with work waiting when an eighth is free, without when
    # the next smaller number of slots will do.
    smaller = max((size for size in setup.sizes if size < total), default=0)
    min_live = max(1, len(active) - total // 8 + 1) if work.queue else smaller + 1
    work.slots = decode.decode(
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
        features=_needed(setup, [seat.request for seat in seats.values()]),
        allowed=allowed,
        draft_tokens=draft_tokens,
        draft_cost=jnp.float32(cost),
        texts=texts,
        drafter=setup.drafter,
    )
    live, length, failed = _ends(work)
    if draft_tokens:
        counts = mesh.fetch(work.state.drafted).sum(axis=0).tolist()
        (verified, accepted), (verified_beside, accepted_beside) = counts
        work.verified += verified + verified_beside
        work.accepted += accepted + accepted_beside
        work.verified_beside += verified_beside
        work.accepted_beside += accepted_beside
    for i, seat in seats.items():
        seat.length = int(length[i])
    if void := [i for i in active if failed[i]]:
        raise FloatingPointError(_explain(seats[void[0]], version, len(void)))
    if allowed is not None:
        constraints.read(work, active)
    stopped = find_stops(setup, work, active)
    if stopped:
        length[list(stopped)], live[list(stopped)] = list(stopped.values()), False
        work.slots = slot.settle(work.state, length, live)
    ended = [i for i in active if not live[i]]
    completions = read_out(setup, work, ended, stopped)
    for i, completion in zip(ended, completions, strict=True):
        if setup.hold and seats[i].room > 1:
            seats[i].held = completion
        else:
            work.seats[i] = None
        if setup.sampler.drafts_beside:
            drafts.remember(work.texts, completion, setup.capacity)
    return completions


def blocked(setup: Setup, work: Work) -> bool:
    """Whether requests wait for slots that are all held, so that `advance` would raise."""
    return bool(work.queue) and len(held_slots(work)) == setup.sizes[-1]


def unfinished(setup: Setup, work: Work) -> list[Completion]:
    """What stands in the slots, and requests that wait, each as far as it has come."""
    active = [i for i, s in enumerate(work.seats) if s is not None and s.held is None]
    started = read_out(setup, work, active, {})
    started = [dataclasses.replace(c, finished=False, stopped=False) for c in started]
    empty = np.zeros(0, np.float32)
    waiting = []
    for request in work.queue:
        p = request.prefix or Prefix(*[empty] * 5)
        kinds = (np.int32, np.float32, np.float32, np.int32, np.int8)
        tokens, logp, entropy, version, source = (
            a.astype(k) for a, k in zip(p[:5], kinds, strict=True)
        )
        completion = Completion(
            request, tokens, logp, entropy, version, False, source, finished=False
        )
        waiting.append(dataclasses.replace(completion, support=p.support))
    return started + waiting


def release(work: Work, ids: Sequence[int]) -> None:
    """Free the slots of held sequences, and cancel those in progress or waiting."""
    gone = set(ids)
    out = [i for i, s in enumerate(work.seats) if s is not None and s.request.id in gone]
    if any(work.seat(i).held is None for i in out):
        live, length, _ = _ends(work)
        live[out] = False
        work.slots = slot.settle(work.state, length, live)
    for i in out:
        work.seats[i] = None
    waiting = [r for r in work.queue if r.id not in gone]
    work.queue.clear()
    work.queue.extend(waiting)


def extend(
    setup: Setup, params: Params, work: Work, observations: Mapping[int, Sequence[int]]
) -> None:
    """Append observations to held sequences, by request id; the policy continues after them.

    Their history is not read again. Observation tokens carry `Source.OBSERVATION`.

    Raises:
      ValueError: an unknown id, an empty observation, or one that leaves no room for a token.
    """
    seats = held_slots(work)
    for name, tokens in observations.items():
        if name not in seats:
            raise ValueError(
                f"request {name} is not held; held are {sorted(seats)}. One that has no room left "
                "for an observation and an answer is not held"
            )
        seat = work.seat(seats[name])
        if not 0 < len(tokens) < seat.room:
            raise ValueError(
                f"request {name}: an observation of {len(tokens)} tokens, but there is room for 1 "
                f"to {seat.room - 1}; shorten it, or raise "
                f"max_new_tokens={seat.request.max_new_tokens}"
            )
    if observations:
        admission.append(setup, setup.with_others(params), work, observations)


def continue_held(setup: Setup, params: Params, work: Work, requests: Sequence[Request]) -> None:
    """Continue held sequences as requests of the same ids, whose prefixes begin with what is held.

    What comes of it is what `submit` would give, but only the rest of each prefix is read.

    Raises:
      ValueError: nothing of that id is held, the request begins in another way, or it differs in
        more than its prefix and stop strings.
    """
    seats, rest = held_slots(work), dict[int, Sequence[int]]()
    for r in requests:
        seat = work.seats[seats[r.id]] if r.id in seats else None
        if seat is None or seat.held is None:
            raise ValueError(f"request {r.id} is not held; submit it")
        was, start = seat.held.request, start_of(r)
        sequence = (*was.prompt, *seat.held.tokens.tolist())
        if start[: len(sequence)] != sequence or len(start) == len(sequence):
            raise ValueError(
                f"request {r.id}: its prompt and prefix must begin with the {len(sequence)} tokens "
                "that are held, and continue after them; release it and submit the request"
            )
        if dataclasses.replace(r, prefix=was.prefix, stop=was.stop) != was:
            raise ValueError(
                f"request {r.id} has other settings than the sequence that is held; release it and "
                "submit the request"
            )
        rest[r.id] = start[len(sequence) :]
    if rest:
        check_requests(setup.config, requests, max_length=setup.max_length)
        everything = setup.with_others(params)
        admission.append(setup, everything, work, rest, {r.id: r for r in requests})


def release_for_queue(setup: Setup, work: Work) -> None:
    """Release held sequences whose slots queued requests need, the shortest first.

    To continue one of them, `submit` it with what it held as its prefix; that is read again.
    """
    if count := held_for_queue(setup, work):
        ended = [work.seat(i) for i in held_slots(work).values()]
        ended.sort(key=lambda seat: (seat.length, seat.request.id))
        release(work, [s.request.id for s in ended[:count]])


def held_for_queue(setup: Setup, work: Work) -> int:
    """How many held sequences `release_for_queue` would release."""
    count = len(held_slots(work))
    if not (count and work.queue):
        return 0
    free = setup.sizes[-1] - sum(s is not None for s in work.seats)
    return min(count, max(0, len(work.queue) - free))


def held_slots(work: Work) -> dict[int, int]:
    """The slots of held sequences, by request id."""
    return {s.request.id: i for i, s in enumerate(work.seats) if s is not None and s.held}


def refresh(setup: Setup, params: Params, work: Work) -> None:
    """After a weight update: what slots remember is computed anew under `params`.

    Unfinished sequences go back to the head of the queue, as `requests.resume` makes them.

    Raises:
      ValueError: sequences are held, so extend or release them first; or one has come further than
        `setup.max_prompt`, which should be `max_length` where sequences are to be refreshed.
    """
    if any(s is not None and s.held is not None for s in work.seats):
        raise ValueError("sequences are held; extend or release them before refresh")
    again = [resume(c) for c in unfinished(setup, work)]
    fresh = Work()
    submit(setup, fresh, again)
    work.slots, work.seats, work.queue = None, [], fresh.queue


def _needed(setup: Setup, live: Sequence[Request]) -> Features:
    """The features to decode with. What is left out keeps its place in the slots."""
    full = setup.features
    if not setup.lean:
        return full
    features = features_of(live, Features(support=full.support))
    return dataclasses.replace(
        features, biases=full.biases if features.biases else 0, top=full.top if features.top else 0
    )


def _ends(work: Work) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is live, the lengths and what has failed, [S] each."""
    s = work.state
    live, length, failed = mesh.fetch((s.live, s.length, s.failed))
    return np.array(live), np.array(length), np.array(failed)


def _explain(seat: Seat, version: int, count: int) -> str:
    """Why a sequence cannot continue."""
    return (
        f"request {seat.request.id}: the logits of token {seat.length - 1} are nan or infinite, or "
        f"all of them -inf, under policy version {version} ({count} sequences are alike); look for "
        "nan in the weights, an overflow of the dtype that is sampled in, or a guide or biases "
        "that forbid every token that may come"
    )
