"""The jitted functions that run the models on slots: `decode` samples, `append` adds tokens."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.mesh import layouts
from jaxrl.models import decoder, head, lora_stack
from jaxrl.sampling import logits as processors
from jaxrl.sampling import sampling, support
from jaxrl.sampling.slots import (
    Caches,
    Features,
    Models,
    SlotState,
    constrain,
    parts,
    pick_rows,
    put_rows,
)
from jaxrl.types import Array, Params


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
            layout=layouts.sampling_layout(model),
        )
        for model, p, cache in zip(models, params, caches, strict=True)
    ]
    return [hidden for hidden, _ in both], tuple(cache for _, cache in both)


def choose(params: tuple[Params, ...], rows: jax.Array) -> tuple[Params, ...]:
    """Parameters of each model with the adapters [B] of the rows of a batch."""
    return tuple(lora_stack.choose(p, rows) for p in params)


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

    def take(a: jax.Array) -> jax.Array:
        return pick_rows(a, target, cut)

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return put_rows(old, target, new, cut)

    length, before = take(slots.length), take(slots.tokens)
    last = _at(before, length - 1)
    # The last token so far has not been read: `decode` reads a token when it samples the next.
    unread = jnp.concatenate([last[:, None], tokens[:, :-1]], axis=1)
    at = length[:, None] + index
    _, caches = extend(
        models,
        choose(params, take(slots.adapter)),
        unread,
        jnp.where(real, at - 1, capacity),
        jax.tree.map(take, slots.caches),
    )
    state = slots.replace(
        caches=jax.tree.map(put, slots.caches, caches),
        tokens=put(slots.tokens, _write(before, jnp.where(real, at, capacity), tokens)),
        length=put(slots.length, length + count),
        limit=put(slots.limit, limit),
        live=put(slots.live, jnp.ones_like(target, bool)),
    )
    return constrain(models, state)


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
    allowed: Array | None = None,
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
      allowed: [S, W] uint32, the tokens that each slot may draw next, see
        `jaxrl.sampling.support`; then `steps` is 1. None: all tokens, at every step.
    """
    capacity = slots.tokens.shape[1]

    def stream_of(request: jax.Array, draw: jax.Array) -> jax.Array:
        draw_key = jnp.where(draw > 0, jax.random.fold_in(key, draw), key)
        return jax.random.fold_in(draw_key, request)

    stream = jax.vmap(stream_of)(slots.request, slots.draw)
    params = choose(params, slots.adapter)

    def top_k(scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        # the compiler would bring all rows together
        best = layouts.by_rows(lambda _, x: jax.lax.top_k(x, count), rules=models[0].rules)
        return best((), scores)

    def running(carry: tuple[jax.Array, SlotState]) -> jax.Array:
        step, s = carry
        return (step < steps) & (jnp.sum(s.live) >= min_live)

    def advance(carry: tuple[jax.Array, SlotState]) -> tuple[jax.Array, SlotState]:
        step, s = carry
        last = s.length - 1
        position = jnp.where(s.live, last, capacity)
        hidden, caches = extend(
            models, params, _at(s.tokens, last)[:, None], position[:, None], s.caches
        )
        scores, *other_scores = (
            head.logits(h[:, 0], decoder.unembedding(p), softcap=m.logit_softcap, spelled=m.spelled)
            for m, p, h in zip(models, params, hidden, strict=True)
        )
        context = processors.Context(hidden[0][:, 0], s.tokens, s.length, tuple(other_scores))
        scores = process(scores, context, args)
        if features.biases:
            scores = processors.add_bias(scores, s.settings.bias_ids, s.settings.bias)
        if features.penalize:
            occurred = processors.occurring(s.tokens, s.length, scores.shape[1])
            scores = processors.penalize(scores, occurred, s.settings.repetition_penalty)
        if allowed is not None:
            scores = support.restrict(scores, jnp.asarray(allowed))
        keys = jax.vmap(jax.random.fold_in)(stream, s.length)
        sample = sampling.sample(
            scores,
            s.settings,
            keys,
            truncate=features.truncate,
            top=features.top,
            top_k=top_k,
            record_support=features.support,
        )
        write = functools.partial(_write, at=jnp.where(s.live, s.length, capacity))

        if features.top:
            s = s.replace(
                top_ids=write(s.top_ids, new=sample.top_ids),
                top_logp=write(s.top_logp, new=sample.top_logp),
            )
        if s.support is not None and sample.support is not None:
            words = sample.support[:, : s.support.shape[-1]]  # tokens beyond are padding
            s = s.replace(support=write(s.support, new=words))
        length, void = s.length + s.live, jnp.isnan(sample.logp)
        ended = jnp.isin(sample.token, stop_ids) | (length >= s.limit) | void
        s = s.replace(
            caches=caches,
            tokens=write(s.tokens, new=sample.token),
            logp=write(s.logp, new=sample.logp),
            entropy=write(s.entropy, new=sample.entropy),
            version=write(s.version, new=jnp.broadcast_to(version, length.shape)),
            length=length,
            live=s.live & ~ended,
            failed=s.failed | (s.live & void),
        )
        return step + 1, constrain(models, s)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), slots))[1]


@jax.jit
def last_tokens(slots: SlotState) -> jax.Array:
    """The last token so far of each slot, [S] int32."""
    return _at(slots.tokens, slots.length - 1)


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
