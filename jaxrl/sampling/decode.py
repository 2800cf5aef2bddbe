"""The jitted functions that run the models: `decode` samples, `append` adds tokens to slots.

`by_position`, within jit, gives figures of a sequence that is there: what a model says of each
token, given those before it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.mesh import layouts
from jaxrl.models import decoder, head, lora_stack
from jaxrl.models.config import DecoderConfig
from jaxrl.models.linear import AdaptedRows
from jaxrl.models.mixers import memory
from jaxrl.sampling import drafts, sampling, support
from jaxrl.sampling import logits as processors
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

ROWS = 64
"""Positions whose logits `by_position` holds at once."""


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
    static_argnames=("models", "process", "features", "draft_tokens", "drafter"),
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
    draft_tokens: int = 0,
    draft_cost: Array | float = 1.0,
    texts: Array | None = None,
    drafter: drafts.Drafter | None = None,
) -> SlotState:
    """Advance every live slot by up to `steps` tokens, while at least `min_live` are live.

    With drafts, the loop ends when the first sequence has `steps` new tokens. A pass over the
    models then reads the last token of a sequence and the draft of those after it. At each of these
    positions the token is drawn with the key that it has in any case, and draws are kept up to the
    first that is not the draft's: they are the tokens, and the distributions, of one pass a token.
    Speculative decoding (Leviathan et al. 2023) with drafts from the text (Saxena 2023), of a small
    model, or of the first layers of the same one (Zhang et al. 2024).

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
        `jaxrl.sampling.support`; then `steps` is 1, and there are no drafts. None: all tokens, at
        every step.
      draft_tokens: static, most tokens that a pass verifies; 0: none.
      draft_cost: scalar float32, what a pass that verifies drafts takes, see `drafts.price`.
      texts: [S, R] int32, completions of the same prompts, in which drafts are looked up too, see
        `drafts.lay_out`; None: there are none.
      drafter: static, the model that drafts; None: they are looked up.
    """
    capacity = slots.tokens.shape[1]

    def stream_of(request: jax.Array, draw: jax.Array) -> jax.Array:
        draw_key = jnp.where(draw > 0, jax.random.fold_in(key, draw), key)
        return jax.random.fold_in(draw_key, request)

    stream = jax.vmap(stream_of)(slots.request, slots.draw)
    silent = int(drafter is not None and drafter.model > 0)  # models whose scores steer nothing
    params = choose(params, slots.adapter)

    def top_k(scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        # the compiler would bring all rows together
        best = layouts.by_rows(lambda _, x: jax.lax.top_k(x, count), rules=models[0].rules)
        return best((), scores)

    def keys_at(lengths: jax.Array) -> jax.Array:
        """The key of each token [S, T] of which there are `lengths` [S, T] before it, one a row."""
        fold = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))
        return fold(stream, lengths).reshape(-1)

    def advance(s: SlotState, draft: drafts.Draft) -> tuple[SlotState, jax.Array]:
        """The slots after a pass, and how many tokens each of them has drawn in it, [S] int32."""
        width = draft.tokens.shape[1] + 1
        ahead = jnp.arange(width)
        last = s.length - 1
        real = s.live[:, None] & (ahead <= draft.size[:, None])
        at = jnp.where(real, last[:, None] + ahead, capacity)
        unread = jnp.concatenate([_at(s.tokens, last)[:, None], draft.tokens], axis=1)
        hidden, caches = extend(models, params, unread, at, s.caches)

        def flat(x: jax.Array) -> jax.Array:
            return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

        def repeat(x: Array) -> jax.Array:
            x = jnp.asarray(x)
            return flat(jnp.broadcast_to(x[:, None], (x.shape[0], width, *x.shape[1:])))

        def by_draw(p: Params) -> Any:
            matrix = decoder.unembedding(p)
            if isinstance(matrix, AdaptedRows) and matrix.chosen is not None:
                matrix = dataclasses.replace(matrix, chosen=repeat(matrix.chosen))
            return matrix

        lengths = s.length[:, None] + ahead
        tokens = s.tokens if width == 1 else repeat(_write(s.tokens, at, unread))
        settings = s.settings if width == 1 else jax.tree.map(repeat, s.settings)
        scores, *other_scores = (
            head.logits(flat(h), by_draw(p), softcap=m.logit_softcap, spelled=m.spelled)
            for m, p, h in list(zip(models, params, hidden, strict=True))[: len(models) - silent]
        )
        context = processors.Context(flat(hidden[0]), tokens, flat(lengths), tuple(other_scores))
        scores = process(scores, context, args)
        if features.biases:
            scores = processors.add_bias(scores, settings.bias_ids, settings.bias)
        if features.penalize:
            occurred = processors.occurring(tokens, flat(lengths), scores.shape[1])
            scores = processors.penalize(scores, occurred, settings.repetition_penalty)
        if allowed is not None:
            scores = support.restrict(scores, jnp.asarray(allowed))
        sample = sampling.sample(
            scores,
            settings,
            keys_at(lengths),
            truncate=features.truncate,
            top=features.top,
            top_k=top_k,
            record_support=features.support,
        )

        def by_slot(x: jax.Array) -> jax.Array:
            return x.reshape(x.shape[0] // width, width, *x.shape[1:])

        drawn_tokens, void = by_slot(sample.token), by_slot(jnp.isnan(sample.logp))
        ended = jnp.isin(drawn_tokens, stop_ids) | (lengths + 1 >= s.limit[:, None]) | void
        right = (drawn_tokens[:, :-1] == draft.tokens) & real[:, 1:] & ~ended[:, :-1]
        count = s.live * (1 + jnp.sum(jnp.cumprod(right, axis=1), axis=1))
        accepted = ahead < count[:, None]
        if width > 1:
            at = jnp.where(accepted, last[:, None] + ahead, capacity)
            caches = _read_again(models, params, unread, at, s.caches, caches)
        at = jnp.where(accepted, lengths, capacity)

        def write(old: jax.Array, new: jax.Array) -> jax.Array:
            return _write(old, at, by_slot(new))

        if features.top:
            s = s.replace(
                top_ids=write(s.top_ids, sample.top_ids),
                top_logp=write(s.top_logp, sample.top_logp),
            )
        if s.support is not None and sample.support is not None:
            words = sample.support[:, : s.support.shape[-1]]  # tokens beyond are padding
            s = s.replace(support=write(s.support, words))
        s = s.replace(
            caches=caches,
            tokens=write(s.tokens, sample.token),
            logp=write(s.logp, sample.logp),
            entropy=write(s.entropy, sample.entropy),
            version=_write(s.version, at, jnp.broadcast_to(version, at.shape)),
            length=s.length + count,
            live=s.live & ~jnp.any(accepted & ended, axis=1),
            failed=s.failed | jnp.any(accepted & void, axis=1),
        )
        return constrain(models, s), count

    def propose(s: SlotState) -> tuple[jax.Array, SlotState]:
        """A draft [S, K], each token drawn with the key that the policy draws with in its place."""
        assert drafter is not None
        m, p = models[drafter.model], params[drafter.model]
        p, before = {**p, "layers": p["layers"][: drafter.layers]}, s.caches[drafter.model]

        def sample_next(carry: tuple[Any, jax.Array], ahead: jax.Array) -> tuple[Any, jax.Array]:
            cache, token = carry
            at = jnp.where(s.live, s.length - 1 + ahead, capacity)
            hidden, (cache,) = extend((m,), (p,), token[:, None], at[:, None], (cache,))
            matrix = decoder.unembedding(p)
            scores = head.logits(
                hidden[0][:, 0], matrix, softcap=m.logit_softcap, spelled=m.spelled
            )
            if features.biases:
                scores = processors.add_bias(scores, s.settings.bias_ids, s.settings.bias)
            token = sampling.sample(
                scores, s.settings, keys_at(s.length[:, None] + ahead),
                truncate=features.truncate, top_k=top_k,
            ).token  # fmt: skip
            return (cache, token), token

        first = (before, _at(s.tokens, s.length - 1))
        (cache, _), tokens = jax.lax.scan(sample_next, first, jnp.arange(draft_tokens))
        # the models read all of it when it is verified, recurrent ones from their states before
        cache = memory.by_kind(lambda _, new: new, lambda old, _: old, before, cache)
        caches = (*s.caches[: drafter.model], cache, *s.caches[drafter.model + 1 :])
        return tokens.T, s.replace(caches=caches)

    if draft_tokens:
        return drafts.run(
            advance, slots, steps, min_live, draft_cost,
            draft_tokens=draft_tokens, texts=texts, propose=propose if drafter else None,
        )  # fmt: skip
    none = drafts.none(slots.length.shape[0])

    def running(carry: tuple[jax.Array, SlotState]) -> jax.Array:
        step, s = carry
        return (step < steps) & (jnp.sum(s.live) >= min_live)

    def one_token(carry: tuple[jax.Array, SlotState]) -> tuple[jax.Array, SlotState]:
        step, s = carry
        return step + 1, advance(s, none)[0]

    return jax.lax.while_loop(running, one_token, (jnp.int32(0), slots))[1]


def _read_again(
    models: Models,
    params: tuple[Params, ...],
    tokens: jax.Array,
    positions: jax.Array,
    before: Caches,
    after: Caches,
) -> Caches:
    """The caches `after` a pass, with recurrent states that have read the accepted tokens alone.

    Keys and values of other tokens are written over. A recurrent state cannot forget them, so its
    model reads the accepted ones again, from its state before.

    Args:
      models: shapes.
      params: as from `decoder.unstack`.
      tokens: [S, T] int32, what the pass has read.
      positions: [S, T] int32 of the accepted ones; those of others lie beyond the caches.
      before, after: of the pass.
    """

    def accept(model: DecoderConfig, p: Params, old: Any, new: Any) -> Any:
        if not model.recurrent:
            return new
        start = memory.by_kind(lambda _, a: a, lambda a, _: a, old, new)
        return extend((model,), (p,), tokens, positions, (start,))[1][0]

    return tuple(map(accept, models, params, before, after))


def by_position(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    length: jax.Array,
    figures: Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]],
) -> tuple[Any, ...]:
    """Figures of every token but the first, computed `ROWS` at a time; within jit.

    Args:
      config: the decoder.
      params: as from `decoder.unstack`.
      tokens: [P] int32; P is a multiple of `ROWS`.
      length: [] int32, how many of them are real.
      figures: `(hidden [R, D], next tokens [R]) -> arrays [R, ...]`, where R is `ROWS`.

    Returns:
      What `figures` returns, [P, ...] each. Entry i is of token i + 1, and those from `length - 1`
      on mean nothing.
    """
    width = tokens.shape[0]
    index = jnp.arange(width)
    positions = jnp.where(index < length, index, width)[None]
    cache = decoder.empty_cache(config, 1, width)
    hidden, _ = decoder.extend(config, params, tokens[None], positions, cache)
    parts = (
        hidden[0].reshape(-1, ROWS, hidden.shape[-1]),
        jnp.roll(tokens, -1).reshape(-1, ROWS),
    )
    outputs = jax.lax.map(lambda part: figures(*part), parts)
    return tuple(a.reshape(width, *a.shape[2:]) for a in outputs)


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
