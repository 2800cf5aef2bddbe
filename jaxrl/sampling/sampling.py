"""From logits to a token: temperature, truncation and an exact draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.sampling import support
from jaxrl.types import Array

_BLOCK = 256


@struct.dataclass
class Sampling:
    """Per-row settings, each [S] unless said otherwise; see `types.Request` for their meaning."""

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    repetition_penalty: Array
    bias_ids: Array
    """[S, B] int32; the vocabulary's size or more is none."""
    bias: Array
    """[S, B] float32."""


class Draw(NamedTuple):
    """A token a row, and what is recorded of it."""

    token: jax.Array
    """[S] int32."""
    logp: jax.Array
    """[S] float32."""
    entropy: jax.Array
    """[S] float32."""
    top_ids: jax.Array
    """[S, K] int32, the most likely tokens, best first."""
    top_logp: jax.Array
    """[S, K] float32."""
    support: jax.Array | None = None
    """[S, W] uint32, the tokens that could be drawn, see `jaxrl.sampling.support`; None: it is not
    recorded."""


def process(logits: jax.Array, settings: Sampling, *, truncate: bool) -> jax.Array:
    """Logits of the distribution that is sampled.

    Args:
      logits: [S, V] float32.
      settings: per-row; rows with temperature 0 are left at temperature 1, untruncated.
      truncate: static; False skips the sort when no row truncates.

    Returns:
      [S, V] float32, -inf where truncated. Truncation follows temperature, top-k first, then top-p
      among what that leaves, then min-p, all ties at the threshold kept. Top-p keeps the token by
      which the mass reaches p.
    """
    greedy = settings.temperature == 0
    scaled = logits / jnp.where(greedy, 1.0, settings.temperature)[:, None]
    if not truncate:
        return scaled
    vocab = logits.shape[-1]
    descending = -jnp.sort(-scaled, axis=-1)
    rank = jnp.arange(vocab)
    k = jnp.where(settings.top_k > 0, settings.top_k, vocab)[:, None]
    probs = jax.nn.softmax(jnp.where(rank < k, descending, -jnp.inf), axis=-1)
    mass_before = jnp.cumsum(probs, axis=-1) - probs
    top_p = settings.top_p[:, None]
    # the mass before the last tokens may be rounded to 1
    keep = (rank < k) & ((mass_before < top_p) | (top_p >= 1))
    keep &= probs >= settings.min_p[:, None] * probs[:, :1]
    keep = keep.at[:, 0].set(True) | greedy[:, None]
    threshold = jnp.min(jnp.where(keep, descending, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(scaled < threshold, -jnp.inf, scaled)  # so that nan stays nan


def draw(logits: jax.Array, keys: jax.Array) -> jax.Array:
    """One exact draw a row from softmax(logits), with two uniforms instead of one a token.

    First a block of the vocabulary by its mass, then a token within it: the chain rule on the
    categorical. Gumbel noise would cost a hash per vocabulary entry.

    Args:
      logits: [S, V] float32; -inf is never drawn.
      keys: [S] typed PRNG keys.

    Returns:
      [S] int32.
    """
    rows, vocab = logits.shape
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK))).reshape(rows, -1, _BLOCK)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    block = _invert(jnp.sum(weights, axis=-1), uniform[:, 0])
    inside = jnp.take_along_axis(weights, block[:, None, None], axis=1)[:, 0]
    return block * _BLOCK + _invert(inside, uniform[:, 1])


def _invert(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    # u < 1 and total is the last partial sum, so some partial sum exceeds u * total, and the first
    # that does has positive weight.
    partial = jnp.cumsum(weights, axis=-1)
    return jnp.argmax(partial > uniform[:, None] * partial[:, -1:], axis=-1).astype(jnp.int32)


def _argmax(logits: jax.Array) -> jax.Array:
    # two reductions that XLA vectorises, where its argmax goes an entry at a time on a CPU
    vocab = logits.shape[-1]
    best = logits == jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(best, jnp.arange(vocab, dtype=jnp.int32), vocab - 1), axis=-1)


def log_prob(logits: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probability of `tokens` [S] and entropy, both [S] in nats, under logits [S, V]."""
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(shifted)
    total = jnp.sum(weights, axis=-1)
    logp = jnp.take_along_axis(shifted, tokens[:, None], axis=-1)[:, 0] - jnp.log(total)
    # where: a truncated logit is -inf, and 0 * -inf would be nan
    mean = jnp.sum(jnp.where(weights > 0, weights * shifted, 0.0), axis=-1) / total
    return logp, jnp.log(total) - mean


def sample(
    logits: jax.Array,
    settings: Sampling,
    keys: jax.Array,
    *,
    truncate: bool,
    top: int = 0,
    top_k: Callable[[jax.Array, int], tuple[jax.Array, jax.Array]] = jax.lax.top_k,
    record_support: bool = False,
) -> Draw:
    """Choose a token a row.

    Args:
      logits: [S, V] float32, bias and penalties applied.
      settings: per-row.
      keys: [S] typed PRNG keys.
      truncate: static; False skips the sort when no row truncates.
      top: static, how many of the most likely tokens to report.
      top_k: the greatest entries of each row and their indices, where devices share out the rows.
      record_support: static, report which tokens could be drawn.

    Returns:
      The draw. Where a row has a nan or inf, or nothing but -inf, there is no distribution: its
      `logp` and `entropy` are nan, and its token means nothing.
    """
    processed = process(logits, settings, truncate=truncate)
    greedy = settings.temperature == 0
    token = jnp.where(greedy, _argmax(logits), draw(processed, keys))
    best, ids = top_k(processed, top)
    normalizer = jax.nn.logsumexp(processed, axis=-1, keepdims=True)
    words = support.to_words(processed > -jnp.inf) if record_support else None
    return Draw(token, *log_prob(processed, token), ids, best - normalizer, words)
