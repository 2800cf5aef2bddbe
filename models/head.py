"""Token log-probabilities without the logits: the head in chunks, recomputed in the backward."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

LogitsFn = Callable[[jax.Array], jax.Array]


def identity(logits: jax.Array) -> jax.Array:
    """Leave logits as they are."""
    return logits


def token_logprobs(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    *,
    process: LogitsFn = identity,
    chunk: int = 1024,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target and entropy of its distribution.

    At most `chunk` rows of logits live at a time, in the forward pass and in the backward pass.

    Args:
      hidden: [N, D], the state that predicts each target.
      unembedding: [V, D].
      targets: [N] int32.
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
        logits = jnp.einsum(
            "nd,vd->nv", h, unembedding.astype(h.dtype), preferred_element_type=jnp.float32
        )
        logits = process(logits)
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
        probs = jnp.exp(logits - normalizer[:, None])
        # where: a truncated logit is -inf, and 0 * -inf would be nan
        entropy = normalizer - jnp.sum(jnp.where(probs > 0, probs * logits, 0.0), axis=-1)
        return carry, jnp.stack([chosen - normalizer, entropy])

    h = jnp.pad(hidden, ((0, pad), (0, 0))).reshape(-1, chunk, d)
    t = jnp.pad(targets, (0, pad)).reshape(-1, chunk)
    _, out = jax.lax.scan(step, None, (h, t))
    logp, entropy = jnp.moveaxis(out, 1, 0).reshape(2, -1)[:, :n]
    return logp, entropy
