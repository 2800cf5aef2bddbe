"""The lab's policy: our decoder, very small; sampling and log-probabilities of all seeds at once.

S seeds (axis 0 of every array, parameters included), N sequences, prompts of P tokens, completions
of at most T.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.lab.tasks import EOS, PAD
from jaxrl.losses.policy.mixed import nlpo_logits
from jaxrl.models import decoder, head
from jaxrl.models.config import DecoderConfig
from jaxrl.training.logprobs import Restriction
from jaxrl.training.tries import WHOLE, Chunks
from jaxrl.types import Params


class Written(NamedTuple):
    """Sampled completions; all [S, N, T]."""

    tokens: jax.Array
    """int32, EOS included, then padding."""
    actions: jax.Array
    """bool: tokens that the policy chose."""
    logp: jax.Array
    """float32, of every token before the padding, forced ones included."""
    entropy: jax.Array
    """float32, of the distribution each was drawn from."""


def shape(vocabulary: int, length: int) -> DecoderConfig:
    """Two layers of 32: about 20 thousand parameters."""
    return DecoderConfig(vocabulary, 32, 64, 2, 2, 2, 16, max_positions=length)


@functools.partial(jax.jit, static_argnames=("model", "respond", "chunks", "mass"))
def sample(
    model: DecoderConfig,
    params: Params,
    prompts: jax.Array,
    answers: jax.Array,
    forced: jax.Array,
    keys: jax.Array,
    temperature: float,
    respond: Callable[..., jax.Array] | None,
    chunks: Chunks = WHOLE,
    mass: float = 0.0,
    likely: Params | None = None,
) -> Written:
    """Completions of prompts [S, N, P]; `forced` [S, N, T] holds -1 where the policy writes.

    In chunks, the environment does not respond. With `likely`, another policy's parameters, tokens
    are chosen among its nucleus of this mass.
    """
    one = functools.partial(_sample, model, respond, temperature, mass)
    if chunks.size:
        one = functools.partial(_sample_chunks, one, chunks)
    return jax.vmap(one)(params, likely, prompts, answers, forced, keys)


def _sample_chunks(
    one: Callable[..., Written],
    chunks: Chunks,
    params: Params,
    likely: Params | None,
    prompts: jax.Array,
    answers: jax.Array,
    forced: jax.Array,
    key: jax.Array,
) -> Written:
    written, done = [], jnp.zeros((len(prompts), 1), bool)
    for carried, start, stop in chunks.spans(0, forced.shape[1]):
        before = [part.tokens for part in written]
        seen = jnp.concatenate([prompts, *before], axis=1)
        seen = jnp.concatenate([prompts, seen[:, prompts.shape[1] + carried :]], axis=1)
        key = jax.random.fold_in(key, start)
        part = one(params, likely, seen, answers, forced[:, start:stop], key)
        written.append(jax.tree.map(lambda a, d=done: jnp.where(d, jnp.zeros_like(a), a), part))
        done = done | jnp.any(part.tokens == EOS, axis=1, keepdims=True)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *written)


def _sample(
    model: DecoderConfig,
    respond: Callable[..., jax.Array] | None,
    temperature: jax.Array,
    mass: float,
    params: Params,
    likely: Params | None,
    prompts: jax.Array,
    answers: jax.Array,
    forced: jax.Array,
    key: jax.Array,
) -> Written:
    (n, p), t_max = prompts.shape, forced.shape[1]
    readers = [params] if likely is None else [params, likely]
    tables = [decoder.unembedding(reader) for reader in readers]
    layers = [decoder.unstack(reader) for reader in readers]

    def read(tokens: jax.Array, place: jax.Array, caches: list, window: int) -> tuple:
        """The last states and the caches, of each reader."""
        out = [
            decoder.extend(model, own, tokens, place, cache, window=window)
            for own, cache in zip(layers, caches, strict=True)
        ]
        return [hidden[:, -1] for hidden, _ in out], [cache for _, cache in out]

    place = jnp.broadcast_to(jnp.arange(p), (n, p))
    empty = [decoder.empty_cache(model, n, p + t_max) for _ in readers]
    states, caches = read(prompts, place, empty, p)

    def step(carry: tuple, t: jax.Array) -> tuple[tuple, Written]:
        caches, states, done, tokens = carry
        logits, *others = (head.logits(*pair) for pair in zip(states, tables, strict=True))
        for other in others:
            logits = nlpo_logits(logits, other, top_p=mass)
        scores = jax.nn.log_softmax(logits / temperature)
        given = forced[:, t]
        if respond is not None:
            said = jax.vmap(respond, (0, 0, None))(answers, tokens, t)
            given = jnp.where(given >= 0, given, said)
        drawn = jax.random.categorical(jax.random.fold_in(key, t), scores)
        token = jnp.where(done, PAD, jnp.where(given >= 0, given, drawn))
        logp = jnp.take_along_axis(scores, token[:, None], axis=1)[:, 0]
        entropy = _entropy(scores)
        out = Written(
            token, ~done & (given < 0), jnp.where(done, 0.0, logp), jnp.where(done, 0.0, entropy)
        )
        at = jnp.full((n, 1), p) + t
        states, caches = read(token[:, None], at, caches, p + t_max)
        return (caches, states, done | (token == EOS), tokens.at[:, t].set(token)), out

    tokens = jnp.full((n, t_max), PAD, jnp.int32)
    start = (caches, states, jnp.zeros(n, bool), tokens)
    _, written = jax.lax.scan(step, start, jnp.arange(t_max))
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), written)


def _entropy(scores: jax.Array) -> jax.Array:
    probs = jnp.exp(scores)
    return -jnp.sum(probs * jnp.where(probs > 0, scores, 0.0), axis=-1)


def logprobs(
    model: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    temperature: float = 1.0,
    chunks: Chunks = WHOLE,
    prompt: int = 0,
    restriction: Restriction | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities and entropies [N, L] of tokens [N, L], the first 0; one seed.

    In chunks, those of the `prompt` tokens that come first are left at 0. A restriction says which
    tokens there were to choose from.
    """
    if chunks.size:
        parts = [jnp.zeros((2, len(tokens), prompt))]
        for carried, start, stop in chunks.spans(prompt, tokens.shape[1]):
            seen = jnp.concatenate([tokens[:, :prompt], tokens[:, carried:stop]], axis=1)
            scored = jnp.stack(logprobs(model, params, seen, temperature, restriction=restriction))
            parts.append(scored[..., start - stop :])
        return tuple(jnp.concatenate(parts, axis=-1))
    logits = _logits(model, params, tokens[:, :-1])
    if restriction is not None:
        likely = _logits(model, restriction.params, tokens[:, :-1])
        logits = restriction.mask(logits, likely, tokens[:, 1:], restriction.args)
    scores = jax.nn.log_softmax(logits / temperature)
    logp = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.pad(logp, ((0, 0), (1, 0))), jnp.pad(_entropy(scores), ((0, 0), (1, 0)))


def all_logprobs(model: DecoderConfig, params: Params, tokens: jax.Array) -> jax.Array:
    """Log-probabilities [N, L, V] of what follows each of the tokens [N, L]; one seed."""
    return jax.nn.log_softmax(_logits(model, params, tokens))


def _logits(model: DecoderConfig, params: Params, tokens: jax.Array) -> jax.Array:
    return head.logits(states(model, params, tokens), decoder.unembedding(params))


@functools.partial(jax.jit, static_argnums=0)
def probabilities(model: DecoderConfig, params: Params, tokens: jax.Array) -> jax.Array:
    """[S, N, L, V] of what follows each of the tokens [S, N, L], under the policy of each seed."""
    return jnp.exp(jax.vmap(functools.partial(all_logprobs, model))(params, tokens))


def states(model: DecoderConfig, params: Params, tokens: jax.Array) -> jax.Array:
    """Last hidden states [N, L, D] of tokens [N, L]; one seed."""
    place = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return decoder.hidden(model, params, tokens, place, jnp.full_like(place, tokens.shape[1]))
