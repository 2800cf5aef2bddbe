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

from jaxrl.types import Params
from launch.lab.tasks import EOS, PAD
from models import decoder, head
from models.config import DecoderConfig


class Written(NamedTuple):
    """What came of sampling; all [S, N, T]."""

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


@functools.partial(jax.jit, static_argnames=("model", "respond"))
def sample(
    model: DecoderConfig,
    params: Params,
    prompts: jax.Array,
    answers: jax.Array,
    forced: jax.Array,
    keys: jax.Array,
    temperature: float,
    respond: Callable[..., jax.Array] | None,
) -> Written:
    """Completions of prompts [S, N, P]; `forced` [S, N, T] holds -1 where the policy writes."""
    one = functools.partial(_sample, model, respond, temperature)
    return jax.vmap(one)(params, prompts, answers, forced, keys)


def _sample(
    model: DecoderConfig,
    respond: Callable[..., jax.Array] | None,
    temperature: jax.Array,
    params: Params,
    prompts: jax.Array,
    answers: jax.Array,
    forced: jax.Array,
    key: jax.Array,
) -> Written:
    (n, p), t_max = prompts.shape, forced.shape[1]
    table, layers = decoder.unembedding(params), decoder.unstack(params)
    cache = decoder.empty_cache(model, n, p + t_max)
    place = jnp.broadcast_to(jnp.arange(p), (n, p))
    hidden, cache = decoder.extend(model, layers, prompts, place, cache, window=p)

    def step(carry: tuple, t: jax.Array) -> tuple[tuple, Written]:
        cache, hidden, done, tokens = carry
        scores = jax.nn.log_softmax(head.logits(hidden, table) / temperature)
        given = forced[:, t]
        if respond is not None:
            said = jax.vmap(respond, (0, 0, None))(answers, tokens, t)
            given = jnp.where(given >= 0, given, said)
        drawn = jax.random.categorical(jax.random.fold_in(key, t), scores)
        token = jnp.where(done, PAD, jnp.where(given >= 0, given, drawn))
        logp = jnp.take_along_axis(scores, token[:, None], axis=1)[:, 0]
        entropy = -jnp.sum(jnp.exp(scores) * scores, axis=1)
        out = Written(
            token, ~done & (given < 0), jnp.where(done, 0.0, logp), jnp.where(done, 0.0, entropy)
        )
        at = jnp.full((n, 1), p) + t
        new, cache = decoder.extend(model, layers, token[:, None], at, cache, window=p + t_max)
        return (cache, new[:, 0], done | (token == EOS), tokens.at[:, t].set(token)), out

    tokens = jnp.full((n, t_max), PAD, jnp.int32)
    start = (cache, hidden[:, -1], jnp.zeros(n, bool), tokens)
    _, written = jax.lax.scan(step, start, jnp.arange(t_max))
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), written)


def logprobs(
    model: DecoderConfig, params: Params, tokens: jax.Array, temperature: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities and entropies [N, L] of tokens [N, L], the first 0; one seed."""
    n, length = tokens.shape
    place = jnp.broadcast_to(jnp.arange(length), (n, length))
    hidden = decoder.hidden(model, params, tokens, place, jnp.full((n, length), length))
    scores = head.logits(hidden[:, :-1], decoder.unembedding(params))
    scores = jax.nn.log_softmax(scores / temperature)
    logp = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(scores) * scores, axis=-1)
    return jnp.pad(logp, ((0, 0), (1, 0))), jnp.pad(entropy, ((0, 0), (1, 0)))
