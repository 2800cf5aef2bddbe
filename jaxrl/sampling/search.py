"""Search at decoding time: best of n samples, and beam search."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.mesh.buckets import round_up
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.models.mixers import memory
from jaxrl.sampling import admission, slots
from jaxrl.types import Completion, Params, Request


def copies(request: Request, n: int, *, first_id: int) -> list[Request]:
    """`n` requests like this one, each with its own random stream, numbered from `first_id`."""
    return [dataclasses.replace(request, id=first_id + i) for i in range(n)]


def best_of(
    completions: Iterable[Completion], score: Callable[[Completion], float | None]
) -> Completion:
    """The completion of the highest score, the first of equals; None is a failed score.

    Raises:
      ValueError: no completion has a score.
    """
    scored = [(value, c) for c in completions if (value := score(c)) is not None]
    if not scored:
        raise ValueError("no completion has a score: scoring failed for all, or there are none")
    return max(scored, key=lambda pair: pair[0])[1]


class Beam(NamedTuple):
    """A hypothesis of beam search."""

    tokens: np.ndarray
    """[n] int32, the stop token included."""
    logp: float
    """Sum of its tokens' log-probabilities."""
    score: float
    """logp / n ** length_penalty, by which hypotheses are ranked."""
    stopped: bool
    """False if it was cut off by the budget."""


class _Search(NamedTuple):
    """State of the loop: W live beams, and the best W ended ones."""

    step: jax.Array
    caches: slots.Caches
    tokens: jax.Array
    """[W, N] int32, responses."""
    logp: jax.Array
    """[W] float32; -inf marks no beam."""
    ended: jax.Array
    """[W, N] int32."""
    ended_logp: jax.Array
    ended_score: jax.Array
    ended_length: jax.Array


def beam(
    config: DecoderConfig,
    params: Params,
    prompt: Sequence[int],
    *,
    width: int,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    length_penalty: float = 0.0,
    bucket: int = 64,
) -> list[Beam]:
    """Beam search: up to `width` most likely responses that it finds, best first.

    It ends when no live beam can still overtake the worst ended hypothesis kept. With `width` 1
    and no length penalty it is greedy decoding.

    Args:
      config: the decoder's shape.
      params: as from `decoder.unstack`.
      prompt: token ids.
      width: beams kept.
      max_new_tokens: budget of the response.
      stop_ids: tokens that end a hypothesis.
      length_penalty: 0 ranks by log-probability, 1 by its mean a token.
      bucket: the prompt's and the cache's lengths are rounded up to powers of two times this.

    Raises:
      ValueError: an empty prompt, a width below 1, or a budget that exceeds the model's positions.
      FloatingPointError: the model's logits give no distribution.
    """
    total = len(prompt) + max_new_tokens
    if not prompt or width < 1 or max_new_tokens < 1 or total > config.max_positions:
        raise ValueError(
            f"beam search with width={width}, {len(prompt)} prompt tokens and max_new_tokens="
            f"{max_new_tokens}: all must be 1 or more, and the tokens at most max_positions="
            f"{config.max_positions}"
        )
    tokens = np.zeros((1, round_up(len(prompt), bucket)), np.int32)
    tokens[0, : len(prompt)] = prompt
    length = np.array([len(prompt)], np.int32)
    prefix = admission.prefill((config,), (params,), tokens, length, piece=tokens.shape[1])
    state = _search(
        config,
        params,
        prefix,
        jnp.int32(prompt[-1]),
        jnp.int32(len(prompt)),
        jnp.asarray(stop_ids, jnp.int32),
        jnp.float32(length_penalty),
        width=width,
        budget=max_new_tokens,
        capacity=round_up(total, bucket),
    )
    if np.isnan(state.logp).any():
        raise FloatingPointError(
            "beam search: the logits are nan or infinite, or all of them -inf; look for nan in the "
            "weights, or an overflow of the dtype that is computed in"
        )
    live = (state.tokens, state.logp, state.logp / float(state.step) ** length_penalty)
    ended = (state.ended, state.ended_logp, state.ended_score)
    beams = [
        Beam(tokens[:size], float(logp), float(score), stopped)
        for arrays, lengths, stopped in (
            (ended, state.ended_length, True),
            (live, np.full(width, int(state.step)), False),
        )
        for tokens, logp, score, size in zip(*jax.device_get(arrays), lengths, strict=True)
        if logp > -np.inf
    ]
    return sorted(beams, key=lambda b: -b.score)[:width]


@functools.partial(jax.jit, static_argnames=("config", "width", "budget", "capacity"))
def _search(
    config: DecoderConfig,
    params: Params,
    prefix: slots.Caches,
    last: jax.Array,
    length: jax.Array,
    stop_ids: jax.Array,
    penalty: jax.Array,
    *,
    width: int,
    budget: int,
    capacity: int,
) -> _Search:
    beams = jnp.arange(width)
    # Among this many candidates there are enough that do not end, whatever ends.
    candidates = min(width * (stop_ids.shape[0] + 1), width * config.vocab_size)

    def spread(a: jax.Array) -> jax.Array:
        return jnp.repeat(a, width, axis=0)

    def widen(a: jax.Array) -> jax.Array:
        room = ((0, 0), (0, 0), (0, capacity - a.shape[2]), (0, 0))
        return spread(jnp.pad(a, room))

    def worth_it(s: _Search) -> jax.Array:
        # Scores only fall, and a length penalty forgives most at full length.
        bound = jnp.max(s.logp) / jnp.float32(budget) ** penalty
        return (s.step < budget) & (bound > jnp.min(s.ended_score))

    def advance(s: _Search) -> _Search:
        token = jnp.where(s.step == 0, last, s.tokens[:, s.step - 1])
        position = jnp.full((width, 1), length + s.step - 1)
        hidden, cache = decoder.extend(config, params, token[:, None], position, s.caches[0])
        scores = head.logits(
            hidden[:, 0],
            decoder.unembedding(params),
            softcap=config.logit_softcap,
            spelled=config.spelled,
        )
        totals = s.logp[:, None] + jax.nn.log_softmax(scores)
        best, index = jax.lax.top_k(totals.reshape(-1), candidates)
        parent, token = index // config.vocab_size, (index % config.vocab_size).astype(jnp.int32)
        tokens = s.tokens[parent].at[:, s.step].set(token)
        stops = jnp.isin(token, stop_ids)

        def choose(old: Any, new: Any, rank: jax.Array) -> Any:
            top = jax.lax.top_k(rank, width)[1]
            return jax.tree.map(lambda a, b: jnp.concatenate([a, b])[top], old, new)

        score = jnp.where(stops, best, -jnp.inf) / (s.step + 1.0) ** penalty
        ended, ended_logp, ended_score, ended_length = choose(
            (s.ended, s.ended_logp, s.ended_score, s.ended_length),
            (tokens, jnp.where(stops, best, -jnp.inf), score, jnp.full_like(token, s.step + 1)),
            jnp.concatenate([s.ended_score, score]),
        )
        logp, survivors = jax.lax.top_k(jnp.where(stops, -jnp.inf, best), width)
        return _Search(
            s.step + 1,
            jax.tree.map(lambda a: a[parent[survivors]], (cache,)),
            tokens[survivors],
            logp,
            ended,
            ended_logp,
            ended_score,
            ended_length,
        )

    none = jnp.full(width, -jnp.inf)
    empty = jnp.zeros((width, budget), jnp.int32)
    start = _Search(
        jnp.int32(0),
        memory.by_kind(widen, spread, prefix),
        empty,
        jnp.where(beams == 0, 0.0, none),
        empty,
        none,
        none,
        jnp.zeros(width, jnp.int32),
    )
    return jax.lax.while_loop(worth_it, advance, start)
