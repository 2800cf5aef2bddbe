"""Slots: sequences in progress as one pytree, and how they are started, moved and copied.

`insert` copies prompts that `prefill` has read into slots, `resize` changes the number of slots,
`peek` copies spans of them for the host; `jaxrl.sampling.decode` runs the models on them. Every
shape comes from a bucket; see `sampler`.

On several devices, slots and rows of prompts are cut into `parts`, one for each shard of the batch.
A sequence stays in its part, and its prompt is read in that part, so that caches are never
exchanged.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.mesh import layouts, mesh
from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.models.mixers import memory
from jaxrl.sampling import sampling, support

Models = tuple[DecoderConfig, ...]
"""The policy's shape, and after it those of the guide's models; parameters come likewise."""
Caches = tuple[tuple[decoder.LayerCache, ...], ...]
"""One of each model."""


@dataclasses.dataclass(frozen=True)
class Features:
    """What decoding must compute beside temperature. Static: what is off costs nothing."""

    truncate: bool = False
    """Some request has top-k, top-p or min-p."""
    penalize: bool = False
    """Some request has a repetition penalty."""
    biases: int = 0
    """Most tokens biased by a request."""
    top: int = 0
    """Most log-probabilities recorded a position."""
    support: bool = False
    """Record which tokens each draw could have given."""


class SlotState(struct.PyTreeNode):
    """S sequences in progress, of up to M tokens."""

    caches: Caches
    tokens: jax.Array
    """[S, M] int32, prompt first."""
    logp: jax.Array
    """[S, M] float32 at sampled tokens."""
    entropy: jax.Array
    """[S, M] float32 at sampled tokens."""
    version: jax.Array
    """[S, M] int32 at sampled tokens."""
    top_ids: jax.Array
    """[S, M, K] int32 at sampled tokens."""
    top_logp: jax.Array
    """[S, M, K] float32 at sampled tokens."""
    length: jax.Array
    """[S] int32, tokens so far."""
    limit: jax.Array
    """[S] int32, the length at which the sequence is cut off."""
    request: jax.Array
    """[S] uint32, the request's id, which names its random stream."""
    draw: jax.Array
    """[S] uint32, `Request.draw`, which names another stream of the same id."""
    adapter: jax.Array
    """[S] int32, `Request.adapter`."""
    live: jax.Array
    """[S] bool."""
    failed: jax.Array
    """[S] bool, ended because no distribution could be made of the logits."""
    drafted: jax.Array
    """[S, 2, 2] int32, passes that verified a draft in the last chunk, and draft tokens accepted,
    by source of the draft."""
    settings: sampling.Sampling
    support: jax.Array | None = None
    """[S, M, W] uint32 at sampled tokens, see `jaxrl.sampling.support`; None: none is recorded."""

    @property
    def width(self) -> int:
        """Positions that the caches hold: at least those of the longest sequence, at most M."""
        return memory.length(self.caches)


def parts(models: Models, *rows: int) -> int:
    """How many parts the mesh in use cuts arrays [rows, ...] into; 1 where it does not divide."""
    shards = mesh.batch_shards(jax.sharding.get_abstract_mesh(), models[0].rules)
    return shards if all(n % shards == 0 for n in rows) else 1


def pick_rows(a: jax.Array, index: jax.Array, count: int) -> jax.Array:
    """Rows `index` [n] of an array [m, ...], both cut into `count` parts, each from its own part.

    An index outside of its part gives any row.
    """
    part_rows = cut(a, count)
    local = jnp.clip(_local(index, count, a.shape[0]), 0, part_rows.shape[1] - 1)
    return jax.vmap(lambda part, i: part[i])(part_rows, local).reshape(len(index), *a.shape[1:])


def put_rows(a: jax.Array, index: jax.Array, new: jax.Array, count: int) -> jax.Array:
    """The array [m, ...] with `new` [n, ...] at rows `index` [n], each in its own part.

    An index beyond the last row is dropped.
    """
    local = _local(index, count, a.shape[0])
    put = jax.vmap(lambda part, i, value: part.at[i].set(value, mode="drop"))
    return put(cut(a, count), local, cut(new, count)).reshape(a.shape)


def cut(a: Any, count: int) -> Any:
    """An array [m, ...] as [count, m / count, ...]."""
    return a.reshape(count, a.shape[0] // count, *a.shape[1:])


def _local(index: jax.Array, count: int, rows: int) -> jax.Array:
    """Indices [n] into `rows` rows as indices [count, n / count] into their parts."""
    return cut(index, count) - jnp.arange(count)[:, None] * (rows // count)


def constrain(models: Models, slots: SlotState) -> SlotState:
    """The same, inside jit, split over the mesh in use: slots as its batch, caches by its rules."""
    caches = constrain_caches(models, slots.caches)
    return _constrain_rows(models, slots.replace(caches=())).replace(caches=caches)


def constrain_caches(models: Models, caches: Caches) -> Caches:
    """The same, inside jit, split over the mesh in use."""
    return tuple(
        tuple(layouts.sampling_layout(model).cache(layer) for layer in cache)
        for model, cache in zip(models, caches, strict=True)
    )


def _constrain_rows(models: Models, slots: SlotState) -> SlotState:
    def by_slot(x: jax.Array) -> jax.Array:
        return mesh.constrain(x, "batch", *[None] * (x.ndim - 1), rules=models[0].rules)

    return jax.tree.map(by_slot, slots)


def empty_settings(slots: int, biases: int) -> sampling.Sampling:
    """Settings of free slots."""
    row, floats = jnp.zeros(slots, jnp.int32), jnp.zeros(slots, jnp.float32)
    return sampling.Sampling(
        temperature=floats,
        top_k=row,
        top_p=floats,
        min_p=floats,
        repetition_penalty=floats,
        bias_ids=jnp.zeros((slots, biases), jnp.int32),
        bias=jnp.zeros((slots, biases), jnp.float32),
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def empty_slots(
    models: Models, slots: int, length: int, width: int, features: Features
) -> SlotState:
    """All slots free, for sequences of up to `length` tokens, with caches for `width` of them."""
    ints = jnp.zeros((slots, length), jnp.int32)
    floats = jnp.zeros((slots, length), jnp.float32)
    row = jnp.zeros(slots, jnp.int32)
    state = SlotState(
        caches=tuple(decoder.empty_cache(m, slots, width) for m in models),
        tokens=ints,
        logp=floats,
        entropy=floats,
        version=ints,
        top_ids=jnp.zeros((slots, length, features.top), jnp.int32),
        top_logp=jnp.zeros((slots, length, features.top), jnp.float32),
        length=row,
        limit=row,
        request=row.astype(jnp.uint32),
        draw=row.astype(jnp.uint32),
        adapter=row,
        live=row.astype(bool),
        failed=row.astype(bool),
        drafted=jnp.zeros((slots, 2, 2), jnp.int32),
        settings=empty_settings(slots, features.biases),
    )
    if features.support:
        words = support.words(models[0].vocab_size)
        state = state.replace(support=jnp.zeros((slots, length, words), jnp.uint32))
    return constrain(models, state)


@functools.partial(jax.jit, static_argnames="models", donate_argnames="slots")
def insert(
    models: Models,
    slots: SlotState,
    prefix: Caches,
    source: jax.Array,
    fresh: jax.Array,
    rows: dict[str, Any],
) -> SlotState:
    """Start sequences: prompt `source[s]` of `prefix` goes to slot s where `fresh[s]`.

    Args:
      models: shapes.
      slots: donated.
      prefix: caches as from `prefill`, [B, P, ...].
      source: [S] int32 rows of the prefix, each in its slot's part.
      fresh: [S] bool.
      rows: the new `tokens` [S, P], `length`, `limit`, `request`, `draw`, `adapter` and
        `settings`, each [S].
    """
    prompt = rows["tokens"].shape[1]
    width = min(prompt, slots.width)  # what is longer than the caches are wide is padding
    count = parts(models, fresh.shape[0], jax.tree.leaves(prefix)[0].shape[0])

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(fresh.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    def copy(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[:, :, :width].set(
            put(old[:, :, :width], pick_rows(new[:, :, :width], source, count))
        )

    def start(old: jax.Array, new: jax.Array) -> jax.Array:
        return put(old, pick_rows(new, source, count))

    state = slots.replace(
        caches=memory.by_kind(copy, start, slots.caches, prefix),
        tokens=slots.tokens.at[:, :prompt].set(put(slots.tokens[:, :prompt], rows["tokens"])),
        length=put(slots.length, rows["length"]),
        limit=put(slots.limit, rows["limit"]),
        request=put(slots.request, rows["request"]),
        draw=put(slots.draw, rows["draw"]),
        adapter=put(slots.adapter, rows["adapter"]),
        live=slots.live | fresh,
        failed=slots.failed & ~fresh,
        settings=jax.tree.map(put, slots.settings, rows["settings"]),
    )
    return constrain(models, state)


def in_line(pages: jax.Array, index: jax.Array) -> jax.Array:
    """What pages [P, heads, B, D] of a token's memory hold at `index` [n], one behind the other.

    Returns:
      [heads, n * B, D].
    """
    chosen = jnp.moveaxis(pages[index], 0, 1)
    return chosen.reshape(chosen.shape[0], -1, chosen.shape[-1])


@functools.partial(jax.jit, static_argnames="models", donate_argnames="caches")
def put_blocks(
    models: Models, caches: Caches, pool: Caches, pages: jax.Array, last: jax.Array, row: jax.Array
) -> Caches:
    """Caches of prompts, one of each part of which begins with blocks of the prefix cache.

    Args:
      models: shapes.
      caches: donated, [R, ...] of P positions.
      pool: pages of B positions, see `prefixes`.
      pages: [N, ceil(P / B)] int32, of the blocks in order, then 0.
      last: [N] int32, the page of the last block.
      row: [N] int32, each in its part; one beyond the last is a no-op.
    """
    count = len(row)

    def copy(old: jax.Array, new: jax.Array) -> jax.Array:
        lines = jax.vmap(in_line)(cut(new, count), pages)
        return put_rows(old, row, lines[:, :, : old.shape[2]], count)

    def copy_state(old: jax.Array, new: jax.Array) -> jax.Array:
        states = jax.vmap(lambda part, page: part[page])(cut(new, count), last)
        return put_rows(old, row, states, count)

    return constrain_caches(models, memory.by_kind(copy, copy_state, caches, pool))


@functools.partial(jax.jit, static_argnames="models", donate_argnames="slots")
def replace_caches(
    models: Models, slots: SlotState, caches: Caches, target: jax.Array
) -> SlotState:
    """The slots, what row r of `caches` remembers in slot `target[r]`.

    Args:
      models: shapes.
      slots: donated.
      caches: [R, ...], as wide as those of the slots.
      target: [R] int32, each in its row's part; one beyond the last is a no-op.
    """
    count = parts(models, slots.length.shape[0], target.shape[0])

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return put_rows(old, target, new, count)

    state = slots.replace(caches=jax.tree.map(put, slots.caches, caches))
    return constrain(models, state)


def resize(models: Models, slots: SlotState, chosen: np.ndarray | None, *, width: int) -> SlotState:
    """The slots `chosen` [s], each from its own part, or all of them, with caches `width` wide.

    Where `chosen` is -1 the slot is free. `slots` is used up, a layer at a time, so that memory
    never holds both whole.
    """
    caches = tuple(
        tuple(_refit(models, m, layer, chosen, width) for layer in cache)
        for m, cache in enumerate(slots.caches)
    )
    rest = slots.replace(caches=())
    return (rest if chosen is None else _choose(models, rest, chosen)).replace(caches=caches)


def _refit(
    models: Models, model: int, layer: decoder.LayerCache, chosen: np.ndarray | None, width: int
) -> decoder.LayerCache:
    new = _fit(models, model, layer, chosen, width=width)
    for leaf in jax.tree.leaves(layer):
        leaf.delete()
    return new


@functools.partial(jax.jit, static_argnames=("models", "model", "width"))
def _fit(
    models: Models, model: int, layer: decoder.LayerCache, chosen: jax.Array | None, *, width: int
) -> decoder.LayerCache:
    def choose(a: jax.Array) -> jax.Array:
        if chosen is None:
            return a
        return pick_rows(a, chosen, parts(models, a.shape[0], chosen.shape[0]))

    def fit(a: jax.Array) -> jax.Array:
        room, a = max(0, width - a.shape[2]), a[:, :, :width]
        return jnp.pad(choose(a), ((0, 0), (0, 0), (0, room), (0, 0)))

    return layouts.sampling_layout(models[model]).cache(memory.by_kind(fit, choose, layer))


@functools.partial(jax.jit, static_argnames="models")
def _choose(models: Models, slots: SlotState, chosen: jax.Array) -> SlotState:
    count = parts(models, slots.length.shape[0], chosen.shape[0])
    state = jax.tree.map(lambda a: pick_rows(a, chosen, count), slots)
    return _constrain_rows(models, state.replace(live=state.live & (chosen >= 0)))


def settle(slots: SlotState, length: np.ndarray, live: np.ndarray) -> SlotState:
    """Set lengths and liveness [S]: tokens removed, sequences cancelled."""

    def put(new: np.ndarray, old: jax.Array) -> jax.Array:
        # where the old ones lie, for anywhere else would have `decode` compiled anew
        on_mesh = isinstance(old.sharding, jax.sharding.NamedSharding)
        return mesh.put(new, old.sharding) if on_mesh else jnp.asarray(new)

    return slots.replace(length=put(length, slots.length), live=put(live, slots.live))


@functools.partial(jax.jit, static_argnames=("models", "width"))
def peek(models: Models, arrays: Any, rows: jax.Array, start: jax.Array, *, width: int) -> Any:
    """`width` positions from `start[k]` of slots `rows[k]`, on every device.

    Args:
      models: shapes.
      arrays: a pytree of [S, M, ...].
      rows: [K] int32.
      start: [K] int32, at most M - `width`.
      width: static.

    Returns:
      The same pytree of [K, width, ...].
    """

    def span(a: jax.Array) -> jax.Array:
        def read_span(row: jax.Array, first: jax.Array) -> jax.Array:
            at: list[jax.Array | int] = [row, first, *[0] * (a.ndim - 2)]
            return jax.lax.dynamic_slice(a, at, (1, width, *a.shape[2:]))[0]

        spans = jax.vmap(read_span)(rows, start)
        return mesh.constrain(spans, *[None] * spans.ndim, rules=models[0].rules)

    return jax.tree.map(span, arrays)
