"""Slots: sequences in progress as one pytree, and the jitted functions that move them on.

`prefill` reads prompts, `insert` copies them into slots, `decode` samples, `append` adds tokens
from outside, `resize` changes the number of slots. Every shape comes from a bucket; see `sampler`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl import logits as processors
from jaxrl import mesh, sampling
from jaxrl.buckets import round_up
from jaxrl.types import Params
from models import decoder, head
from models.config import DecoderConfig

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
    live: jax.Array
    """[S] bool."""
    settings: sampling.Sampling

    @property
    def width(self) -> int:
        """Positions that the caches hold: at least those of the longest sequence, at most M."""
        return jax.tree.leaves(self.caches)[0].shape[2]


def lay(models: Models, slots: SlotState) -> SlotState:
    """The same, inside jit, split over the mesh in use: slots as its batch, caches by its rules."""
    caches = tuple(
        tuple(mesh.sampling_layout(model).cache(layer) for layer in cache)
        for model, cache in zip(models, slots.caches, strict=True)
    )
    return _lay_rows(models, slots.replace(caches=())).replace(caches=caches)


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
        live=row.astype(bool),
        settings=empty_settings(slots, features.biases),
    )
    return lay(models, state)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def empty_caches(models: Models, rows: int, length: int) -> Caches:
    """Caches of `rows` sequences of up to `length` tokens."""
    return tuple(decoder.empty_cache(m, rows, length) for m in models)


def _extend(
    models: Models,
    params: tuple[Params, ...],
    tokens: jax.Array,
    positions: jax.Array,
    caches: Caches,
    window: int | None = None,
) -> tuple[list[jax.Array], Caches]:
    """`decoder.extend` for each model."""
    both = [
        decoder.extend(
            model, p, tokens, positions, cache, window=window, layout=mesh.sampling_layout(model)
        )
        for model, p, cache in zip(models, params, caches, strict=True)
    ]
    return [hidden for hidden, _ in both], tuple(cache for _, cache in both)


@functools.partial(jax.jit, static_argnames=("models", "window"), donate_argnames="caches")
def read(
    models: Models,
    params: tuple[Params, ...],
    caches: Caches,
    tokens: jax.Array,
    positions: jax.Array,
    *,
    window: int,
) -> Caches:
    """Caches after tokens [R, T] at `positions` [R, T] of their first R rows.

    Padding lies beyond the cache.
    """
    rows = tokens.shape[0]
    part = jax.tree.map(lambda a: a[:rows], caches)
    part = _extend(models, params, tokens, positions, part, window)[1]
    return jax.tree.map(lambda a, new: a.at[:rows].set(new), caches, part)


def prefill(
    models: Models,
    params: tuple[Params, ...],
    tokens: np.ndarray,
    length: np.ndarray,
    *,
    piece: int,
) -> Caches:
    """Caches of prompts, [B, ...]: as few rows and positions are computed as buckets allow.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      tokens: [B, P] int32, padded on the right.
      length: [B] int32; rows of length 0 come last.
      piece: most tokens a row in one pass: attention then needs memory for piece x P scores.
    """
    total, width = tokens.shape
    rows = min(round_up(int(np.count_nonzero(length)), 1), total)
    index = np.arange(width, dtype=np.int32)
    positions = np.where(index < length[:, None], index, width).astype(np.int32)
    caches, step = empty_caches(models, total, width), min(piece, round_up(int(length.max()), 16))
    for start in range(0, int(length.max()), step):
        part = slice(start, min(start + step, width))
        window = min(round_up(part.stop, step), width)
        caches = read(
            models, params, caches, tokens[:rows, part], positions[:rows, part], window=window
        )
    return caches


@functools.partial(jax.jit, static_argnames="models", donate_argnames="slots")
def insert(
    models: Models,
    slots: SlotState,
    prefix: Caches,
    source: jax.Array,
    target: jax.Array,
    rows: dict[str, Any],
) -> SlotState:
    """Start sequences: prompt `source[i]` of `prefix` goes to slot `target[i]`.

    Args:
      models: shapes.
      slots: donated.
      prefix: caches as from `prefill`, [B, P, ...].
      source: [S] int32 rows of the prefix.
      target: [S] int32 slots; one beyond the last is a no-op.
      rows: the new `tokens` [S, P], `length`, `limit`, `request` and `settings`, each [S].
    """
    prompt = rows["tokens"].shape[1]
    kept = min(prompt, slots.width)  # what is longer than the caches are wide is padding

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[target].set(new, mode="drop")

    state = slots.replace(
        caches=jax.tree.map(
            lambda old, new: old.at[target, :, :kept].set(new[source, :, :kept], mode="drop"),
            slots.caches,
            prefix,
        ),
        tokens=slots.tokens.at[target, :prompt].set(rows["tokens"], mode="drop"),
        length=put(slots.length, rows["length"]),
        limit=put(slots.limit, rows["limit"]),
        request=put(slots.request, rows["request"]),
        live=put(slots.live, jnp.ones_like(target, bool)),
        settings=jax.tree.map(put, slots.settings, rows["settings"]),
    )
    return lay(models, state)


def resize(
    models: Models, slots: SlotState, chosen: np.ndarray, count: np.int32, *, width: int
) -> SlotState:
    """The slots `chosen` [s], with caches `width` wide.

    Those from `count` on are free, whatever they were. `slots` is used up, a layer at a
    time, so that memory never holds both whole.
    """
    caches = tuple(
        tuple(_refit(model, layer, chosen, width) for layer in cache)
        for model, cache in zip(models, slots.caches, strict=True)
    )
    return _choose(models, slots.replace(caches=()), chosen, count).replace(caches=caches)


def _refit(
    model: DecoderConfig, layer: decoder.LayerCache, chosen: np.ndarray, width: int
) -> decoder.LayerCache:
    new = _fit(model, layer, chosen, width=width)
    for leaf in layer:
        leaf.delete()
    return new


@functools.partial(jax.jit, static_argnames=("model", "width"))
def _fit(
    model: DecoderConfig, layer: decoder.LayerCache, chosen: jax.Array, *, width: int
) -> decoder.LayerCache:
    def fit(a: jax.Array) -> jax.Array:
        room = max(0, width - a.shape[2])
        return jnp.pad(a[chosen, :, :width], ((0, 0), (0, 0), (0, room), (0, 0)))

    return mesh.sampling_layout(model).cache(jax.tree.map(fit, layer))


@functools.partial(jax.jit, static_argnames="models")
def _choose(models: Models, slots: SlotState, chosen: jax.Array, count: jax.Array) -> SlotState:
    kept = jax.tree.map(lambda a: a[chosen], slots)
    live = kept.live & (jnp.arange(chosen.shape[0]) < count)
    return _lay_rows(models, kept.replace(live=live))


@functools.partial(jax.jit, donate_argnames="slots")
def settle(slots: SlotState, length: jax.Array, live: jax.Array) -> SlotState:
    """Set lengths and liveness [S]: tokens taken back, sequences called off."""
    return slots.replace(length=length, live=live)


@functools.partial(jax.jit, static_argnames="models", donate_argnames="slots")
def append(
    models: Models,
    params: tuple[Params, ...],
    slots: SlotState,
    target: jax.Array,
    tokens: jax.Array,
    count: jax.Array,
) -> SlotState:
    """Append given tokens to sequences, without reading their history again; they become live.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      slots: donated; its caches must be at least as wide as the greatest length afterwards.
      target: [R] int32 slots; one beyond the last is a no-op.
      tokens: [R, T] int32, padded on the right.
      count: [R] int32, how many are real.
    """
    capacity = slots.tokens.shape[1]
    index = jnp.arange(tokens.shape[1])
    real = index < count[:, None]
    length = slots.length[target]
    last = slots.tokens[target, length - 1]
    # The last token so far has not been read: `decode` reads a token when it samples the next.
    unread = jnp.concatenate([last[:, None], tokens[:, :-1]], axis=1)
    at = length[:, None] + index
    _, caches = _extend(
        models,
        params,
        unread,
        jnp.where(real, at - 1, capacity),
        jax.tree.map(lambda a: a[target], slots.caches),
    )
    state = slots.replace(
        caches=jax.tree.map(
            lambda old, new: old.at[target].set(new, mode="drop"), slots.caches, caches
        ),
        tokens=slots.tokens.at[target[:, None], jnp.where(real, at, capacity)].set(
            tokens, mode="drop"
        ),
        length=slots.length.at[target].add(count, mode="drop"),
        live=slots.live.at[target].set(True, mode="drop"),
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
    rows = jnp.arange(slots.length.shape[0])
    capacity = slots.tokens.shape[1]
    stream = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, slots.request)

    def running(carry: tuple[jax.Array, SlotState]) -> jax.Array:
        taken, s = carry
        return (taken < steps) & (jnp.sum(s.live) >= min_live)

    def advance(carry: tuple[jax.Array, SlotState]) -> tuple[jax.Array, SlotState]:
        taken, s = carry
        last = s.length - 1
        position = jnp.where(s.live, last, capacity)
        hidden, caches = _extend(
            models, params, s.tokens[rows, last][:, None], position[:, None], s.caches
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
            scores, s.settings, keys, truncate=features.truncate, top=features.top
        )
        at = (rows, jnp.where(s.live, s.length, capacity))

        def write(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[at].set(new, mode="drop")

        if features.top:
            s = s.replace(
                top_ids=write(s.top_ids, drawn.top_ids), top_logp=write(s.top_logp, drawn.top_logp)
            )
        length = s.length + s.live
        ended = jnp.isin(drawn.token, stop_ids) | (length >= s.limit)
        s = s.replace(
            caches=caches,
            tokens=write(s.tokens, drawn.token),
            logp=write(s.logp, drawn.logp),
            entropy=write(s.entropy, drawn.entropy),
            version=write(s.version, version),
            length=length,
            live=s.live & ~ended,
        )
        return taken + 1, lay(models, s)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), slots))[1]
