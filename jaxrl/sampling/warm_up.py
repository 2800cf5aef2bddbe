"""Compiles the sampler's programs ahead of time, so that no request waits for the compiler."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.sampling import admission, decode, prefixes, support
from jaxrl.sampling import slots as slot
from jaxrl.sampling.requests import settings_of
from jaxrl.sampling.work import Setup, Work, read_out, warm_up_reading
from jaxrl.types import Params, Request


def warm_up(setup: Setup, params: Params) -> None:
    """Compile every program that `sampler.submit`, `advance` and `extend` may need.

    They are as many as there are buckets: of prompts read at once and their lengths, and of slots
    and cache widths together. A `lean` setup compiles its leaner programs when it meets them.

    Args:
      setup: what sampling will use. `sampler.generate` makes the same of the same arguments.
      params: as sampling will get them; only their shapes matter.
    """
    everything, rows = setup.with_others(params), setup.rows
    lengths = [min(16 << i, setup.piece) for i in range((setup.piece - 1).bit_length())]
    pieces, rows_per_part = sorted({*lengths, setup.piece}), rows // setup.shards
    tokens = np.zeros((rows, setup.prompt_width), np.int32)
    for count, length in itertools.product(
        range(1, rows_per_part + 1), {*pieces, setup.prompt_width}
    ):
        if count == rows_per_part or count.bit_count() == 1:
            prompt_lengths = np.where(np.arange(rows) % rows_per_part < count, length, 0).astype(
                np.int32
            )
            prefix = admission.prefill(
                setup.models, everything, tokens, prompt_lengths, piece=setup.piece
            )
    if setup.sampler.prefix_cache:
        _warm_up_prefixes(setup, everything, pieces)
    for size, widths in setup.shapes.items():
        for width in widths:
            _warm_up_shape(setup, everything, prefix, size, width, pieces if setup.hold else [])


def _warm_up_prefixes(setup: Setup, params: tuple[Params, ...], pieces: Sequence[int]) -> None:
    """Compile what `admission.prefill_cached` may need."""
    work, rows, none = Work(), setup.rows, np.zeros(setup.rows, np.int32)
    size, width = setup.sampler.prefix_block, setup.prompt_width
    tokens, lengths = np.zeros((rows, width), np.int32), {*pieces, min(size, width), width}
    # a prompt of more blocks than there are pages: any length may be left behind them
    most = prefixes.whole_blocks(setup.sampler.prefix_cache, size, setup.models, width)
    lengths |= {min(most * size + piece, width) for piece in pieces}
    rows_per_part = rows // setup.shards
    for count, length in itertools.product(range(1, rows_per_part + 1), lengths):
        if count == rows_per_part or count.bit_count() == 1:
            fresh = np.arange(rows) % rows_per_part < count
            prompt_lengths = np.where(fresh, length, 0).astype(np.int32)
            admission.prefill_cached(setup, params, work, tokens, prompt_lengths, none)


def warm_up_first(setup: Setup, params: Params, requests: Sequence[Request]) -> None:
    """Compile what a `Work` runs first for these requests, reading and decoding side by side.

    Args:
      setup: what sampling will use.
      params: as sampling will get them, on one device; their values are of no interest.
      requests: those that will be submitted first.
    """
    work = Work()
    work.queue.extend(requests)
    admission.make_room(setup, work)
    state = slot.empty_slots(
        setup.models, len(work.seats), setup.capacity, work.state.width, setup.features
    )
    state = jax.device_put(state, jax.tree.leaves(params)[0].sharding)  # where `insert` leaves it
    with ThreadPoolExecutor(1) as pool:
        constrained = any(r.constraint is not None for r in requests)
        decoding = pool.submit(
            _decode_nothing, setup, setup.with_others(params), state, constrained=constrained
        )
        admission.admit(setup, setup.with_others(params), work)
        read_out(setup, Work(decoding.result(), work.seats), [0], {})


def _warm_up_shape(
    setup: Setup,
    params: tuple[Params, ...],
    prefix: slot.Caches,
    size: int,
    width: int,
    pieces: list[int],
) -> None:
    none = np.zeros(size, np.int32)
    new = {
        "tokens": np.zeros((size, setup.prompt_width), np.int32),
        "length": none,
        "limit": none,
        "request": none.astype(np.uint32),
        "draw": none.astype(np.uint32),
        "adapter": none,
        "settings": settings_of([], setup.config.vocab_size, size, setup.features.biases),
    }
    for neighbour_size, wide in neighbours(setup, size, width):
        state = slot.empty_slots(setup.models, size, setup.capacity, width, setup.features)
        chosen = None if neighbour_size == size else np.full(neighbour_size, -1, np.int32)
        slot.resize(setup.models, state, chosen, width=wide)
    state = slot.empty_slots(setup.models, size, setup.capacity, width, setup.features)
    state = slot.insert(setup.models, state, prefix, none, none.astype(bool), new)
    for piece in pieces:
        target, count = np.full(setup.rows, size, np.int32), np.zeros(setup.rows, np.int32)
        tokens = np.zeros((setup.rows, piece), np.int32)
        state = decode.append(setup.models, params, state, target, tokens, count, count)
    state = slot.settle(state, np.ones(size, np.int32), np.zeros(size, bool))
    state = _decode_nothing(setup, params, state)
    if setup.matchers is not None:
        state = _decode_nothing(setup, params, state, constrained=True)
    if width == setup.shapes[size][-1]:
        warm_up_reading(setup, state)
    jax.block_until_ready(state)


def neighbours(setup: Setup, size: int, width: int) -> list[tuple[int, int]]:
    """Slots and cache widths to which one program leads from these."""
    return [
        *((size, next_width) for next_width in _beside(setup.shapes[size], width)),
        *((next_size, setup.width(next_size, width)) for next_size in _beside(setup.sizes, size)),
    ]


def _beside(buckets: list[int], bucket: int) -> list[int]:
    at = buckets.index(bucket)
    return [*buckets[max(0, at - 1) : at], *buckets[at + 1 : at + 2]]


def _decode_nothing(
    setup: Setup, params: tuple[Params, ...], state: slot.SlotState, *, constrained: bool = False
) -> slot.SlotState:
    size, texts = state.length.shape[0], None
    if constrained:
        decode.last_tokens(state)
    elif setup.sampler.drafts_beside:
        texts = np.full((size, setup.capacity), -1, np.int32)
    return decode.decode(
        setup.models,
        params,
        state,
        key=setup.key,
        version=jnp.int32(0),
        stop_ids=jnp.asarray(setup.stop_ids, jnp.int32),
        steps=jnp.int32(0),
        min_live=jnp.int32(1),
        args=setup.guide.args,
        process=setup.guide.process,
        features=setup.features,
        allowed=np.zeros((size, support.words(setup.config.vocab_size)), np.uint32)
        if constrained
        else None,
        draft_tokens=0 if constrained else setup.sampler.most_drafted,
        draft_cost=jnp.float32(1),
        texts=texts,
        drafter=setup.drafter,
    )
