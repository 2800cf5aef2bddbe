"""Logits processors: pure functions from the model's scores to the scores that are sampled from.

A processor is `process(logits, context, args) -> logits`, [S, V] float32 to the same. It acts
before bias, repetition penalty, temperature and truncation, in this order, and the recorded
log-probabilities are those of the distribution that comes out in the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.losses.policy import mixed
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Array, Params


class Context(NamedTuple):
    """The inputs of a logits processor, for S sequences."""

    hidden: jax.Array
    """[S, D], the policy's last hidden state."""
    tokens: jax.Array
    """[S, M] int32, prompt first."""
    length: jax.Array
    """[S] int32, tokens so far; what lies beyond in `tokens` is void."""
    others: tuple[jax.Array, ...]
    """[S, V] logits of each of the guide's models."""


Processor = Callable[[jax.Array, Context, Any], jax.Array]


class Guide(NamedTuple):
    """A logits processor of the policy with its arguments, for all sequences of a call."""

    process: Processor
    """Compiled into decoding: pass the same function object each time."""
    args: Any = ()
    """A pytree handed to `process`; its values may change without compiling anew."""
    models: tuple[DecoderConfig, ...] = ()
    """Decoders that read the same tokens beside the policy, over the same vocabulary."""
    params: tuple[Params, ...] = ()
    """Theirs, each as from `decoder.unstack`."""


def keep(logits: jax.Array, context: Context, args: Any) -> jax.Array:
    """Leave logits as they are."""
    return logits


def proxy_tuning(logits: jax.Array, context: Context, args: Any) -> jax.Array:
    """Proxy-tuning (Liu et al. 2024): `logits + args * (tuned - untuned)`.

    The guide's two models are a small tuned one and the same one untuned.
    """
    tuned, untuned = context.others
    return logits + args * (tuned - untuned)


def contrastive(logits: jax.Array, context: Context, args: Any) -> jax.Array:
    """Contrastive decoding (Li et al. 2023; O'Brien and Lewis 2023): against a weak amateur.

    `(1 + beta) * expert - beta * amateur` among tokens at least `alpha` times as likely as the
    expert's best; `args` is (alpha, beta), the guide's one model the amateur.
    """
    alpha, beta = args
    plausible = logits >= jnp.max(logits, axis=-1, keepdims=True) + jnp.log(alpha)
    return jnp.where(plausible, (1 + beta) * logits - beta * context.others[0], -jnp.inf)


def nucleus_of(logits: jax.Array, context: Context, args: Any) -> jax.Array:
    """NLPO's action mask (Ramamurthy et al. 2023): another policy's nucleus, the rest forbidden.

    The guide's one model is the masking policy, an earlier copy of this one; `args` is the mass of
    its nucleus.
    """
    return mixed.nlpo_logits(logits, context.others[0], top_p=args)


def value_guided(logits: jax.Array, context: Context, args: Any) -> jax.Array:
    """Value-guided decoding (Mudgal et al. 2024, "Controlled Decoding"): `logits + beta * Q`.

    `args` is (head, beta), with a head [V, D] that reads the value of each next token off the
    policy's hidden state. It samples the KL-regularised optimum pi * exp(beta * Q) if Q is exact.
    """
    head, beta = args
    hidden, head = context.hidden.astype(jnp.float32), head.astype(jnp.float32)
    return logits + beta * jnp.matmul(hidden, head.T, precision=jax.lax.Precision.HIGHEST)


def q_guided(logits: jax.Array, context: Context, args: Any) -> jax.Array:
    """ILQL's decoding (Snell et al. 2023): `logits + beta * min_h Q_h`, with `args` beta.

    The logits of the guide's models are values of each next token.
    """
    return logits + args * functools.reduce(jnp.minimum, context.others)


def add_bias(logits: jax.Array, ids: Array, bias: Array) -> jax.Array:
    """Add `bias` [S, B] to the logits [S, V] of tokens `ids` [S, B]; an id of V or more is none."""
    return jax.vmap(lambda row, at, row_bias: row.at[at].add(row_bias, mode="drop"))(
        logits, ids, bias
    )


def occurring(tokens: jax.Array, length: jax.Array, vocab_size: int) -> jax.Array:
    """Which tokens [S, V] bool occur in the first `length` [S] of `tokens` [S, M]."""
    real = jnp.arange(tokens.shape[1]) < length[:, None]
    none = jnp.zeros(vocab_size, bool)
    return jax.vmap(lambda at: none.at[at].set(True, mode="drop"))(
        jnp.where(real, tokens, vocab_size)
    )


def penalize(logits: jax.Array, occurred: jax.Array, penalty: Array) -> jax.Array:
    """Repetition penalty (Keskar et al. 2019, CTRL): scores of tokens that occurred shrink.

    A positive logit is divided by `penalty` [S], a negative one multiplied by it.

    Args:
      logits: [S, V].
      occurred: [S, V] bool, as from `seen`.
      penalty: [S], 1 for none.
    """
    factor = penalty[:, None]
    return jnp.where(occurred, jnp.where(logits > 0, logits / factor, logits * factor), logits)
