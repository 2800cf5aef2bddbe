"""Compiling ahead what sampling may come to, so that no request waits for the compiler."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import slots as slot
from jaxrl.requests import settings_of
from jaxrl.types import Params
from jaxrl.work import Setup


def warm_up(setup: Setup, params: Params) -> None:
    """Compile every program that `sampler.submit`, `advance` and `extend` may need.

    They are as many as there are buckets: of prompts read at once and their lengths, and of slots
    and cache widths together. A `lean` setup compiles its leaner programs when it meets them.

    Args:
      setup: what sampling will use. `sampler.generate` makes the same of the same arguments.
      params: as sampling will get them; only their shapes matter.
    """
    everything, rows = (params, *setup.guide.params), setup.sampler.prefill_rows
    lengths = [min(16 << i, setup.piece) for i in range((setup.piece - 1).bit_length())]
    pieces = sorted({*lengths, setup.piece})
    tokens = np.zeros((rows, setup.prompt_width), np.int32)
    for count, length in itertools.product(range(1, rows + 1), {*pieces, setup.prompt_width}):
        if count == rows or count.bit_count() == 1:
            given = np.where(np.arange(rows) < count, length, 0).astype(np.int32)
            prefix = slot.prefill(setup.models, everything, tokens, given, piece=setup.piece)
    for size, width in itertools.product(setup.sizes, setup.widths):
        none = np.full(size, size, np.int32)
        new = {
            "tokens": np.zeros((size, setup.prompt_width), np.int32),
            "length": none,
            "limit": none,
            "request": none.astype(np.uint32),
            "settings": settings_of([], setup.config.vocab_size, size, setup.features.biases),
        }
        for other, wide in _neighbours(setup, size, width):
            state = slot.empty_slots(setup.models, size, setup.capacity, width, setup.features)
            chosen = np.zeros(other, np.int32)
            slot.resize(setup.models, state, chosen, np.int32(0), width=wide)
        state = slot.empty_slots(setup.models, size, setup.capacity, width, setup.features)
        state = slot.insert(setup.models, state, prefix, np.zeros(size, np.int32), none, new)
        for piece in pieces if setup.hold else ():
            target, count = np.full(rows, size, np.int32), np.zeros(rows, np.int32)
            given = np.zeros((rows, piece), np.int32)
            state = slot.append(setup.models, everything, state, target, given, count)
        state = slot.settle(state, np.ones(size, np.int32), np.zeros(size, bool))
        state = slot.decode(
            setup.models,
            everything,
            state,
            key=setup.key,
            version=jnp.int32(0),
            stop_ids=jnp.asarray(setup.stop_ids, jnp.int32),
            steps=jnp.int32(0),
            min_live=jnp.int32(1),
            args=setup.guide.args,
            process=setup.guide.process,
            features=setup.features,
        )
        jax.block_until_ready(state)


def _neighbours(setup: Setup, size: int, width: int) -> list[tuple[int, int]]:
    at, across = setup.sizes.index(size), setup.widths.index(width)
    return [
        *((size, w) for w in setup.widths[max(0, across - 1) : across + 2] if w != width),
        *((s, width) for s in setup.sizes[max(0, at - 1) : at + 2] if s != size),
    ]
