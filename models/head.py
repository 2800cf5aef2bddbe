"""Token log-probabilities without the logits: the head in chunks, recomputed in the backward."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

LogitsFn = Callable[[jax.Array], jax.Array]


def identity(logits: jax.Array) -> jax.Array:
    """Leave logits as they are."""
    return logits


def logits(hidden: jax.Array, unembedding: jax.Array, *, softcap: float | None = None) -> jax.Array:
    """Scores of the next token in fp32, [N, V], of hidden [N, D] and unembedding [V, D].

    Args:
      hidden: in the compute dtype.
      unembedding: as from `decoder.unembedding`.
      softcap: bounds the scores s to `softcap * tanh(s / softcap)` (Gemma 2).
    """
    scores = jnp.einsum(
        "nd,vd->nv", hidden, unembedding.astype(hidden.dtype), preferred_element_type=jnp.float32
    )
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)


def token_logprobs(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    *,
    softcap: float | None = None,
    process: LogitsFn = identity,
    chunk: int = 1024,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target and entropy of its distribution.

    At most `chunk` rows of logits live at a time, in the forward pass and in the backward pass.

    Args:
      hidden: [N, D], the state that predicts each target.
      unembedding: [V, D].
      targets: [N] int32.
      softcap: as in `logits`.
      process: [n, V] fp32 logits to [n, V], e.g. temperature; the same as at sampling.
      chunk: tokens per step.

    Returns:
      logp [N] and entropy [N] in nats, fp32.
    """
    n, d = hidden.shape
    chunk = min(chunk, n)
    pad = -n % chunk

    @jax.checkpoint
    def step(carry: None, xs: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        h, target = xs
        scores = process(logits(h, unembedding, softcap=softcap))
        normalizer = jax.nn.logsumexp(scores, axis=-1)
        chosen = jnp.take_along_axis(scores, target[:, None], axis=-1)[:, 0]
        probs = jnp.exp(scores - normalizer[:, None])
        # where: a truncated logit is -inf, and 0 * -inf would be nan
        entropy = normalizer - jnp.sum(jnp.where(probs > 0, probs * scores, 0.0), axis=-1)
        return carry, jnp.stack([chosen - normalizer, entropy])

    h = jnp.pad(hidden, ((0, pad), (0, 0))).reshape(-1, chunk, d)
    t = jnp.pad(targets, (0, pad)).reshape(-1, chunk)
    _, out = jax.lax.scan(step, None, (h, t))
    logp, entropy = jnp.moveaxis(out, 1, 0).reshape(2, -1)[:, :n]
    return logp, entropy
