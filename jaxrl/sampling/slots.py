"""Slots: sequences in progress as one pytree, and the jitted functions that move them on.

`insert` copies prompts that `prefill` has read into slots, `decode` samples, `append` adds tokens
from outside, `resize` changes the number of slots, `peek` copies spans of them for the host. Every
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

from jaxrl.mesh import mesh
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.sampling import logits as processors
from jaxrl.sampling import sampling
from jaxrl.types import Params

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


@struct.dataclass
class SlotState:
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
    live: jax.Array
    """[S] bool."""
    failed: jax.Array
    """[S] bool, ended because no distribution could be made of the logits."""
    settings: sampling.Sampling

    @property
    def width(self) -> int:
        """Positions that the caches hold: at least those of the longest sequence, at most M."""
        return jax.tree.leaves(self.caches)[0].shape[2]


def parts(models: Models, *rows: int) -> int:
    """How many parts the mesh in use cuts arrays [rows, ...] into; 1 where it does not divide."""
    shards = mesh.batch_shards(jax.sharding.get_abstract_mesh(), models[0].rules)
    return shards if all(n % shards == 0 for n in rows) else 1


def _pick(a: jax.Array, index: jax.Array, count: int) -> jax.Array:
    """Rows `index` [n] of an array [m, ...], both cut into `count` parts, each from its own part.

    An index outside of its part gives any row.
    """
    whole = cut(a, count)
    local = jnp.clip(_local(index, count, a.shape[0]), 0, whole.shape[1] - 1)
    return jax.vmap(lambda part, i: part[i])(whole, local).reshape(len(index), *a.shape[1:])


def _put(a: jax.Array, index: jax.Array, new: jax.Array, count: int) -> jax.Array:
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


def lay(models: Models, slots: SlotState) -> SlotState:
    """The same, inside jit, split over the mesh in use: slots as its batch, caches by its rules."""
    caches = lay_caches(models, slots.caches)
    return _lay_rows(models, slots.replace(caches=())).replace(caches=caches)


def lay_caches(models: Models, caches: Caches) -> Caches:
    """The same, inside jit, split over the mesh in use."""
    return tuple(
        tuple(mesh.sampling_layout(model).cache(layer) for layer in cache)
        for model, cache in zip(models, caches, strict=True)
    )


def _lay_rows(models: Models, slots: SlotState) -> SlotState:
    def lay(x: jax.Array) -> jax.Array:
        return mesh.constrain(x, "batch", *[None] * (x.ndim - 1), rules=models[0].rules)

    return jax.tree.map(lay, slots)


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
        live=row.astype(bool),
        failed=row.astype(bool),
        settings=empty_settings(slots, features.biases),
    )
    return lay(models, state)


def extend(
    models: Models,
    params: tuple[Params, ...],
    tokens: jax.Array,
    positions: jax.Array,
    caches: Caches,
    window: int | None = None,
    from_start: bool = False,
) -> tuple[list[jax.Array], Caches]:
    """`decoder.extend` for each model."""
    both = [
        decoder.extend(
            model,
            p,
            tokens,
            positions,
            cache,
            window=window,
            from_start=from_start,
            layout=mesh.sampling_layout(model),
        )
        for model, p, cache in zip(models, params, caches, strict=True)
    ]
    return [hidden for hidden, _ in both], tuple(cache for _, cache in both)


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
      rows: the new `tokens` [S, P], `length`, `limit`, `request`, `draw` and `settings`,
        each [S].
    """
    prompt = rows["tokens"].shape[1]
    kept = min(prompt, slots.width)  # what is longer than the caches are wide is padding
    count = parts(models, fresh.shape[0], jax.tree.leaves(prefix)[0].shape[0])

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(fresh.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    def copy(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[:, :, :kept].set(
            put(old[:, :, :kept], _pick(new[:, :, :kept], source, count))
        )

    state = slots.replace(
        caches=jax.tree.map(copy, slots.caches, prefix),
        tokens=slots.tokens.at[:, :prompt].set(put(slots.tokens[:, :prompt], rows["tokens"])),
        length=put(slots.length, rows["length"]),
        limit=put(slots.limit, rows["limit"]),
        request=put(slots.request, rows["request"]),
        draw=put(slots.draw, rows["draw"]),
        live=slots.live | fresh,
        failed=slots.failed & ~fresh,
        settings=jax.tree.map(put, slots.settings, rows["settings"]),
    )
    return lay(models, state)


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
    for leaf in layer:
        leaf.delete()
    return new


@functools.partial(jax.jit, static_argnames=("models", "model", "width"))
def _fit(
    models: Models, model: int, layer: decoder.LayerCache, chosen: jax.Array | None, *, width: int
) -> decoder.LayerCache:
    def fit(a: jax.Array) -> jax.Array:
        room, a = max(0, width - a.shape[2]), a[:, :, :width]
        if chosen is not None:
            a = _pick(a, chosen, parts(models, a.shape[0], chosen.shape[0]))
        return jnp.pad(a, ((0, 0), (0, 0), (0, room), (0, 0)))

    return mesh.sampling_layout(models[model]).cache(jax.tree.map(fit, layer))


@functools.partial(jax.jit, static_argnames="models")
def _choose(models: Models, slots: SlotState, chosen: jax.Array) -> SlotState:
    count = parts(models, slots.length.shape[0], chosen.shape[0])
    kept = jax.tree.map(lambda a: _pick(a, chosen, count), slots)
    return _lay_rows(models, kept.replace(live=kept.live & (chosen >= 0)))


def settle(slots: SlotState, length: np.ndarray, live: np.ndarray) -> SlotState:
    """Set lengths and liveness [S]: tokens taken back, sequences called off."""

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
        def one(row: jax.Array, first: jax.Array) -> jax.Array:
            at = (row, first, *[0] * (a.ndim - 2))
            return jax.lax.dynamic_slice(a, at, (1, width, *a.shape[2:]))[0]

        found = jax.vmap(one)(rows, start)
        return mesh.constrain(found, *[None] * found.ndim, rules=models[0].rules)

    return jax.tree.map(span, arrays)


@functools.partial(jax.jit, static_argnames="models", donate_argnames="slots")
def append(
    models: Models,
    params: tuple[Params, ...],
    slots: SlotState,
    target: jax.Array,
    tokens: jax.Array,
    count: jax.Array,
    limit: jax.Array,
) -> SlotState:
    """Append given tokens to sequences, without reading their history again; they become live.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      slots: donated; its caches must be at least as wide as the greatest length afterwards.
      target: [R] int32 slots, each in its row's part; one beyond the last is a no-op.
      tokens: [R, T] int32, padded on the right.
      count: [R] int32, how many are real.
      limit: [R] int32, the length at which decoding then ends.
    """
    capacity = slots.tokens.shape[1]
    index = jnp.arange(tokens.shape[1])
    real = index < count[:, None]
    cut = parts(models, slots.length.shape[0], target.shape[0])

    def of(a: jax.Array) -> jax.Array:
        return _pick(a, target, cut)

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return _put(old, target, new, cut)

    length, before = of(slots.length), of(slots.tokens)
    last = _at(before, length - 1)
    # The last token so far has not been read: `decode` reads a token when it samples the next.
    unread = jnp.concatenate([last[:, None], tokens[:, :-1]], axis=1)
    at = length[:, None] + index
    _, caches = extend(
        models,
        params,
        unread,
        jnp.where(real, at - 1, capacity),
        jax.tree.map(of, slots.caches),
    )
    state = slots.replace(
        caches=jax.tree.map(put, slots.caches, caches),
        tokens=put(slots.tokens, _write(before, jnp.where(real, at, capacity), tokens)),
        length=put(slots.length, length + count),
        limit=put(slots.limit, limit),
        live=put(slots.live, jnp.ones_like(target, bool)),
    )
    return lay(models, state)


@functools.partial(
    jax.jit,
    static_argnames=("models", "process", "features"),
    donate_argnames="slots",
)
def decode(
    models: Models,
    params: tuple[Params, ...],
    slots: SlotState,
    *,
    key: jax.Array,
    version: jax.Array,
    stop_ids: jax.Array,
    steps: jax.Array,
    min_live: jax.Array,
    args: Any,
    process: processors.Processor,
    features: Features,
) -> SlotState:
    """Advance every live slot by up to `steps` tokens, while at least `min_live` are live.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      slots: donated; its caches must be as wide as the greatest live length after `steps` tokens.
        Attention reads them whole: a part would be copied at every step.
      key: the run's sampling key; a token's own key folds in its request's id and its position.
      version: scalar int32, the policy version of `params`.
      stop_ids: [E] int32, tokens that end a sequence.
      steps: scalar int32.
      min_live: scalar int32, at least 1.
      args: of `process`.
      process: static, see `logits`.
      features: static, what any slot asks for.
    """
    capacity = slots.tokens.shape[1]

    def stream_of(request: jax.Array, draw: jax.Array) -> jax.Array:
        own = jnp.where(draw > 0, jax.random.fold_in(key, draw), key)
        return jax.random.fold_in(own, request)

    stream = jax.vmap(stream_of)(slots.request, slots.draw)

    def top_k(scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        # the compiler would bring all rows together
        best = mesh.by_rows(lambda _, x: jax.lax.top_k(x, count), rules=models[0].rules)
        return best((), scores)

    def running(carry: tuple[jax.Array, SlotState]) -> jax.Array:
        taken, s = carry
        return (taken < steps) & (jnp.sum(s.live) >= min_live)

    def advance(carry: tuple[jax.Array, SlotState]) -> tuple[jax.Array, SlotState]:
        taken, s = carry
        last = s.length - 1
        position = jnp.where(s.live, last, capacity)
        hidden, caches = extend(
            models, params, _at(s.tokens, last)[:, None], position[:, None], s.caches
        )
        scores, *others = (
            head.logits(h[:, 0], decoder.unembedding(p), softcap=m.logit_softcap)
            for m, p, h in zip(models, params, hidden, strict=True)
        )
        context = processors.Context(hidden[0][:, 0], s.tokens, s.length, tuple(others))
        scores = process(scores, context, args)
        if features.biases:
            scores = processors.add_bias(scores, s.settings.bias_ids, s.settings.bias)
        if features.penalize:
            occurred = processors.seen(s.tokens, s.length, scores.shape[1])
            scores = processors.penalize(scores, occurred, s.settings.repetition_penalty)
        keys = jax.vmap(jax.random.fold_in)(stream, s.length)
        drawn = sampling.sample(
            scores, s.settings, keys, truncate=features.truncate, top=features.top, top_k=top_k
        )
        write = functools.partial(_write, at=jnp.where(s.live, s.length, capacity))

        if features.top:
            s = s.replace(
                top_ids=write(s.top_ids, new=drawn.top_ids),
                top_logp=write(s.top_logp, new=drawn.top_logp),
            )
        length, void = s.length + s.live, jnp.isnan(drawn.logp)
        ended = jnp.isin(drawn.token, stop_ids) | (length >= s.limit) | void
        s = s.replace(
            caches=caches,
            tokens=write(s.tokens, new=drawn.token),
            logp=write(s.logp, new=drawn.logp),
            entropy=write(s.entropy, new=drawn.entropy),
            version=write(s.version, new=jnp.broadcast_to(version, length.shape)),
            length=length,
            live=s.live & ~ended,
            failed=s.failed | (s.live & void),
        )
        return taken + 1, lay(models, s)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), slots))[1]


@jax.vmap
def _at(a: jax.Array, index: jax.Array) -> jax.Array:
    """Entry `index[s]` of each row of an array [S, M, ...]."""
    return a[index]


@jax.vmap
def _write(a: jax.Array, at: jax.Array, new: jax.Array) -> jax.Array:
    """Arrays [S, M, ...] with `new` at `at[s]` of each row; what lies beyond is dropped.

    A row at a time, not by pairs of indices: then devices that share out the rows exchange nothing.
    """
    return a.at[at].set(new, mode="drop")
