"""Which sequence is in which slot: admitting requests, appending to them, resizing the slots.

`prefill` computes the caches of prompts, each read once for all the slots that begin with it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder, lora_stack
from jaxrl.sampling import decode, prefixes
from jaxrl.sampling import slots as slot
from jaxrl.sampling.decode import extend
from jaxrl.sampling.requests import limit_of, settings_of, start_of, turn_start
from jaxrl.sampling.slots import Caches, Models, constrain_caches, cut, parts
from jaxrl.sampling.work import Seat, Setup, Work, route
from jaxrl.types import Params, Request


def make_room(setup: Setup, work: Work) -> None:
    """Grow towards what is queued; shrink when fewer slots do, so a tail pays for itself alone."""
    seats, total = work.seats, len(work.seats)
    occupied = [s for s in seats if s is not None]
    per = max(1, total // setup.shards)
    fullest = max((per - seats[i : i + per].count(None) for i in range(0, total, per)), default=0)
    least = len(occupied) + len(work.queue)
    if work.queue:
        least = max(least, total)
    # sequences stay in their parts, and each of these must have room for its own
    enough = (n for n in setup.sizes if n >= max(least, fullest * setup.shards))
    target_size = next(enough, setup.sizes[-1])
    coming = itertools.islice(work.queue, target_size - len(occupied))
    lengths = [s.length + (not s.held) for s in occupied] + [len(start_of(r)) + 1 for r in coming]
    reshape(setup, work, target_size, max(lengths, default=1))


def reshape(setup: Setup, work: Work, total: int, least: int) -> None:
    """Have `total` slots, whose caches hold at least `least` positions.

    It goes by way of the shapes between: few programs lead from each to the next.
    """
    target_shape = total, setup.width(total, least)
    current_shape = (len(work.seats), work.slots.width) if work.slots else None
    if current_shape is None or (current_shape != target_shape and not any(work.seats)):
        work.slots = slot.empty_slots(
            setup.models, total, setup.capacity, target_shape[1], setup.features
        )
        work.seats, current_shape = [None] * total, target_shape
    for size, width in route(setup, current_shape, target_shape):
        chosen = None if size == len(work.seats) else _kept(work.seats, size, setup.shards)
        work.slots = slot.resize(setup.models, work.state, chosen, width=width)
        if chosen is not None:
            work.seats = [work.seats[i] if i >= 0 else None for i in chosen]


def _kept(seats: Sequence[Seat | None], size: int, shards: int) -> np.ndarray:
    """Which slots become those of `size`, each in its part; -1 for one that is free."""
    chosen = np.full((shards, size // shards), -1, np.int32)
    per = len(seats) // shards
    for p in range(shards):
        occupied_slots = [i for i in range(p * per, (p + 1) * per) if seats[i] is not None]
        chosen[p, : len(occupied_slots)] = occupied_slots
    return chosen.ravel()


def admit(setup: Setup, params: tuple[Params, ...], work: Work) -> None:
    """Move requests from the queue into free slots, with up to `prefill_rows` prompts.

    A prompt is read in the part where its slots are, once for all that share it and an adapter
    there.

    Raises:
      ValueError: a request of an adapter that the parameters have not.
    """
    rows, total, shards = setup.rows, len(work.seats), setup.shards
    rows_per_part, per = rows // shards, total // shards
    free = [
        [i for i in range(p * per, (p + 1) * per) if work.seats[i] is None] for p in range(shards)
    ]
    starts: list[dict[tuple[int, tuple[int, ...]], int]] = [{} for _ in range(shards)]
    requests: dict[int, Request] = {}
    source = np.zeros(total, np.int32)
    _check_adapters(params[0], work.queue)
    while work.queue:
        opening = work.queue[0].adapter, start_of(work.queue[0])
        ready = [
            (opening in starts[p], len(free[p]), -p)
            for p in range(shards)
            if free[p] and (opening in starts[p] or len(starts[p]) < rows_per_part)
        ]
        if not ready:
            break
        p = -max(ready)[-1]
        i = free[p].pop(0)
        source[i] = starts[p].setdefault(opening, p * rows_per_part + len(starts[p]))
        requests[i] = work.queue.popleft()

    tokens = np.zeros((rows, setup.prompt_width), np.int32)
    length, adapter = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    for (name, start), row in (item for part in starts for item in part.items()):
        tokens[row, : len(start)] = start
        length[row], adapter[row] = len(start), name
    empty = Request(0, (), 0)

    def column(value: Callable[[Request], int], dtype: Any) -> np.ndarray:
        return np.array([value(requests.get(i, empty)) for i in range(total)], dtype)

    new = {
        "tokens": tokens[source],
        "length": length[source],
        "limit": column(limit_of, np.int32),
        "request": column(lambda r: r.id & 0xFFFFFFFF, np.uint32),
        "draw": column(lambda r: r.draw, np.uint32),
        "adapter": column(lambda r: r.adapter, np.int32),
        "settings": settings_of(
            [requests.get(i, empty) for i in range(total)],
            setup.config.vocab_size,
            total,
            setup.features.biases,
        ),
    }
    fresh = np.isin(np.arange(total), list(requests))
    if setup.sampler.prefix_cache:
        prefix, cached = prefill_cached(setup, params, work, tokens, length, adapter)
        work.cached_by_id |= {r.id: int(cached[source[i]]) for i, r in requests.items()}
    else:
        prefix = prefill(setup.models, params, tokens, length, adapter, piece=setup.piece)
    work.slots = slot.insert(setup.models, work.slots, prefix, source, fresh, new)
    for i, request in requests.items():
        start, turn = start_of(request), turn_start(request)
        work.seats[i] = Seat(request, len(start), turn, read=list(start[turn:]))


def _check_adapters(params: Params, requests: Sequence[Request]) -> None:
    places = lora_stack.count(params)
    for r in requests:
        if not 0 <= r.adapter <= places:
            raise ValueError(
                f"request {r.id}: adapter={r.adapter}, but the parameters have {places}, from 1; "
                "put one there by lora_stack, or ask for 0, the base"
            )


def append(
    setup: Setup,
    params: tuple[Params, ...],
    work: Work,
    observations: Mapping[int, Sequence[int]],
    requests: Mapping[int, Request] = {},
) -> None:
    """Append observations to held sequences, by request id, with rows in the parts of the slots.

    Those in `requests` continue with these requests, whose prefixes contain the observations.
    """
    after = [s.length + len(observations.get(s.request.id, ())) for s in work.seats if s]
    reshape(setup, work, len(work.seats), max(after) + 1)
    chosen = [i for i, s in enumerate(work.seats) if s and s.request.id in observations]
    if any(model.recurrent for model in setup.models):
        for rows in _batches(setup, work, [i for i in chosen if work.seat(i).overread]):
            _reread(setup, params, work, rows)
    for rows in _batches(setup, work, chosen):
        _append(setup, params, work, rows, observations, requests)


def _batches(setup: Setup, work: Work, chosen: Sequence[int]) -> Iterator[dict[int, int]]:
    """Rows for the slots `chosen`, each in its slot's part, as many at once as prompts are read."""
    rows_per_part, per = setup.rows // setup.shards, len(work.seats) // setup.shards
    queues = [[i for i in chosen if i // per == p] for p in range(setup.shards)]
    for first in range(0, max(map(len, queues)), rows_per_part):
        part = slice(first, first + rows_per_part)
        yield {
            p * rows_per_part + k: i
            for p, queue in enumerate(queues)
            for k, i in enumerate(queue[part])
        }


def _reread(setup: Setup, params: tuple[Params, ...], work: Work, slots: Mapping[int, int]) -> None:
    """Read the held sequences of slots anew, from their first tokens."""
    tokens = np.zeros((setup.rows, work.state.width), np.int32)
    length, adapter = np.zeros(setup.rows, np.int32), np.zeros(setup.rows, np.int32)
    target = np.full(setup.rows, len(work.seats), np.int32)
    for row, i in slots.items():
        seat = work.seat(i)
        assert seat.held is not None
        adapter[row] = seat.request.adapter
        sequence = (*seat.held.request.prompt, *seat.held.tokens.tolist())
        tokens[row, : len(sequence)], length[row], target[row] = sequence, len(sequence), i
        seat.overread = False
    history = prefill(setup.models, params, tokens, length, adapter, piece=setup.piece)
    work.slots = slot.replace_caches(setup.models, work.slots, history, target)


def _append(
    setup: Setup,
    params: tuple[Params, ...],
    work: Work,
    slots: Mapping[int, int],
    observations: Mapping[int, Sequence[int]],
    requests: Mapping[int, Request],
) -> None:
    """Append to the slot of each row."""
    seats = {row: work.seat(i) for row, i in slots.items()}
    row_observations = {row: observations[seat.request.id] for row, seat in seats.items()}
    longest = max(map(len, row_observations.values()))
    width = min(round_up(longest, 16), setup.piece)
    limit = np.zeros(setup.rows, np.int32)
    for row, seat in seats.items():
        turn = seat.request.turn_tokens or seat.room
        limit[row] = seat.length + min(seat.room, len(row_observations[row]) + turn)
    for start in range(0, longest, width):
        target = np.full(setup.rows, len(work.seats), np.int32)
        tokens, count = np.zeros((setup.rows, width), np.int32), np.zeros(setup.rows, np.int32)
        for row, i in slots.items():
            if len(part := list(row_observations[row][start : start + width])):
                target[row] = i
                tokens[row, : len(part)], count[row] = part, len(part)
        work.slots = decode.append(setup.models, params, work.slots, target, tokens, count, limit)
    for row, seat in seats.items():
        before, seat.length = seat.length, seat.length + len(row_observations[row])
        if seat.request.id in requests:
            seat.request, seat.observed = requests[seat.request.id], []
        else:
            seat.observed.append((before, seat.length))
        seat.turn, seat.read, seat.matcher, seat.held = seat.length, [], None, None


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def empty_caches(models: Models, rows: int, length: int) -> Caches:
    """Caches of `rows` sequences of up to `length` tokens."""
    return constrain_caches(models, tuple(decoder.empty_cache(m, rows, length) for m in models))


@functools.partial(
    jax.jit, static_argnames=("models", "window", "from_start"), donate_argnames="caches"
)
def read(
    models: Models,
    params: tuple[Params, ...],
    caches: Caches,
    tokens: jax.Array,
    positions: jax.Array,
    adapter: jax.Array,
    *,
    window: int,
    from_start: bool,
) -> Caches:
    """Caches [R, ...] after tokens [R, T] at `positions` [R, T]; padding lies beyond the cache.

    `adapter` [R] is `Request.adapter`; `window` and `from_start` are those of `decoder.extend`.
    """
    params = decode.choose(params, adapter)
    return extend(models, params, tokens, positions, caches, window, from_start)[1]


def prefill(
    models: Models,
    params: tuple[Params, ...],
    tokens: np.ndarray,
    length: np.ndarray,
    adapter: np.ndarray | None = None,
    *,
    piece: int,
    read_counts: np.ndarray | None = None,
    caches: Caches | None = None,
) -> Caches:
    """Caches of prompts but for their last tokens, [B, ...].

    As few rows and positions are computed as buckets allow. Decoding reads the last token, with
    which it samples the next: to read a token twice would change a recurrent state.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      tokens: [B, P] int32, padded on the right.
      length: [B] int32; in each of the `parts`, rows of length 0 come last.
      adapter: [B] int32, `Request.adapter`; None: no row has one.
      piece: most tokens a row in one pass: attention then needs memory for piece x P scores.
      read_counts: [B] int32, tokens of each that have been read; None: none.
      caches: donated, what is remembered of these, [`used_rows`, P, ...]; None: nothing.
    """
    total, width = tokens.shape
    count, used = parts(models, total), used_rows(models, length)
    adapter = np.zeros(total, np.int32) if adapter is None else adapter
    read_counts = np.zeros(total, np.int32) if read_counts is None else read_counts
    tokens, length, adapter, read_counts = (
        cut(a, count)[:, :used].reshape(-1, *a.shape[1:])
        for a in (tokens, length, adapter, read_counts)
    )
    index = read_counts[:, None] + np.arange(width, dtype=np.int32)
    positions = np.where(index < length[:, None] - 1, index, width).astype(np.int32)
    tokens = np.take_along_axis(tokens, np.minimum(index, width - 1), axis=1)
    fresh, longest = caches is None, int((length - read_counts).max())
    caches = empty_caches(models, count * used, width) if caches is None else caches
    step = min(piece, round_up(longest, 16))
    for start in range(0, longest, step):
        part = slice(start, min(start + step, width))
        window = min(round_up(part.stop, step), width) if fresh else width
        caches = read(
            models,
            params,
            caches,
            tokens[:, part],
            positions[:, part],
            adapter,
            window=window,
            from_start=fresh and start == 0,
        )
    return caches if count * used == total else _fill_up(models, caches, total)


def used_rows(models: Models, length: np.ndarray) -> int:
    """Rows of each part that are computed for prompts of `length` [B], those of 0 left out."""
    rows = cut(length, parts(models, len(length)))
    return min(round_up(int(np.count_nonzero(rows, axis=1).max()), 1), rows.shape[1])


def prefill_cached(
    setup: Setup,
    params: tuple[Params, ...],
    work: Work,
    tokens: np.ndarray,
    length: np.ndarray,
    adapter: np.ndarray,
) -> tuple[Caches, np.ndarray]:
    """`prefill` with the prefix cache: whole blocks are found, or read one by one.

    What is computed follows from the prompts alone: blocks by `prefixes.read_block`, then the rest
    of all prompts together, wherever the blocks came from.

    Returns:
      The caches, and how many tokens of each prompt were found, [B] int32.
    """
    models, cache, width, shards = setup.models, work.prefixes, tokens.shape[1], setup.shards
    mib, size = setup.sampler.prefix_cache, setup.sampler.prefix_block
    count = prefixes.pages(mib, size, models)
    if cache.shape != (models, count, size, shards):
        cache.pool, cache.weights = empty_caches(models, shards * (count + 1), size), []
    prefixes.follow(cache, params, count, shards)
    cache.shape = None  # until all blocks that are named have been read
    read_counts, cached = np.zeros_like(length), np.zeros_like(length)
    used, rows_per_part = used_rows(models, length), len(length) // shards
    caches = empty_caches(models, shards * used, width)
    for k in range(used):
        rows = np.arange(shards) * rows_per_part + k
        openings = [
            prefixes.split(
                tokens[row].tolist(), size,
                prefixes.whole_blocks(mib, size, models, int(length[row])),
            )
            for row in rows
        ]  # fmt: skip
        paths = [
            prefixes.find(shard, int(adapter[row]), opening)
            for shard, row, opening in zip(cache.shards, rows, openings, strict=True)
        ]
        read_counts[rows] = [size * len(opening) for opening in openings]
        cached[rows] = [size * len(path) for path in paths]
        work.blocks += prefixes.read_blocks(cache, models, params, openings, paths, adapter[rows])
        if any(paths):
            target = np.arange(shards) * used + k
            caches = slot.put_blocks(
                models, caches, cache.pool,
                prefixes.pages_of(paths, -(-width // size)),
                np.array([path[-1].page if path else 0 for path in paths], np.int32),
                np.where([bool(path) for path in paths], target, shards * used).astype(np.int32),
            )  # fmt: skip
    cache.shape = (models, count, size, shards)
    work.cached += int(cached.sum())
    piece = setup.piece
    caches = prefill(
        models, params, tokens, length, adapter, piece=piece, read_counts=read_counts, caches=caches
    )
    return caches, cached


def work_with_blocks(setup: Setup, lengths: Sequence[int], blocks: int) -> tuple[int, int, int]:
    """What reading prompts of these lengths takes, and `blocks` for the prefix cache; without, 0.

    Returns:
      Tokens that are read, and passes and positions as of `work_of`.
    """
    mib, size, rest = setup.sampler.prefix_cache, setup.sampler.prefix_block, lengths
    if mib:
        rest = [n - size * prefixes.whole_blocks(mib, size, setup.models, n) for n in lengths]
    passes, positions = work_of(rest, setup.rows, setup.piece)
    return sum(rest) + blocks * size, passes + blocks, positions + blocks * size


def work_of(lengths: Sequence[int], rows: int, piece: int) -> tuple[int, int]:
    """What reading prompts of these lengths takes, `rows` of them at a time.

    Returns:
      Passes of at most `piece` positions of each row, and positions that they compute in all,
      padding included.
    """
    passes = positions = 0
    for first in range(0, len(lengths), rows):
        part = lengths[first : first + rows]
        step = min(piece, round_up(max(part), 16))
        count = -(-max(part) // step)
        passes, positions = passes + count, positions + len(part) * step * count
    return passes, positions


@functools.partial(jax.jit, static_argnames=("models", "total"))
def _fill_up(models: Models, caches: Caches, total: int) -> Caches:
    """Caches [total, ...]: those given, and empty rows at the end of each part."""
    count = parts(models, total)

    def fill(a: jax.Array) -> jax.Array:
        room = (total - a.shape[0]) // count
        padded_parts = jnp.pad(cut(a, count), ((0, 0), (0, room), *[(0, 0)] * (a.ndim - 1)))
        return padded_parts.reshape(total, *a.shape[1:])

    return constrain_caches(models, jax.tree.map(fill, caches))
