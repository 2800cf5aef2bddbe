"""Token log-probabilities without the logits: the head in chunks, recomputed in the backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxrl.models.linear import AdaptedRows, precision, project_by_row, project_transposed

LogitsFn = Callable[..., jax.Array]

Read = Callable[..., jax.Array]
"""`(logits [..., V], targets [...], what is beside) -> [...]`: what is read of the logits."""

_FEW = 128
"""Tokens that a CPU scores as fast with the head on the left; more scores are slow to turn."""


def identity(logits: jax.Array) -> jax.Array:
    """Leave logits as they are."""
    return logits


NEVER = -1e30
"""Score of a token that has no text; finite, so that differences of two of them are 0."""


def logits(
    hidden: jax.Array,
    unembedding: jax.Array | AdaptedRows,
    *,
    softcap: float | None = None,
    spelled: int = 0,
) -> jax.Array:
    """Scores of the next token in fp32, [..., V], of hidden [..., D] and unembedding [V, D].

    In bf16 the products are exact and their sums fp32; in fp32 both are fp32 on every device.

    Args:
      hidden: in the compute dtype.
      unembedding: as from `decoder.unembedding`; with adapters by row, a row is a leading index.
      softcap: bounds the scores s to `softcap * tanh(s / softcap)` (Gemma 2).
      spelled: tokens that may come next, the first of them; 0: all.
    """
    by_row = isinstance(unembedding, AdaptedRows)
    matrix = (unembedding.base if by_row else unembedding).astype(hidden.dtype)
    if jax.default_backend() == "cpu" and math.prod(hidden.shape[:-1]) <= _FEW:
        scores = project_transposed(hidden, matrix, dtype=jnp.float32)
    else:
        scores = jnp.einsum(
            "...d,vd->...v",
            hidden,
            matrix,
            precision=precision(hidden.dtype),
            preferred_element_type=jnp.float32,
        )
    if by_row and unembedding.chosen is not None:
        scores = scores + project_by_row(hidden, unembedding).astype(jnp.float32)
    scores = scores if softcap is None else softcap * jnp.tanh(scores / softcap)
    if not 0 < spelled < scores.shape[-1]:
        return scores
    return jnp.where(jnp.arange(scores.shape[-1]) < spelled, scores, NEVER)


def token_logprobs(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    *,
    softcap: float | None = None,
    spelled: int = 0,
    process: LogitsFn = identity,
    read: Read | None = None,
    beside: Sequence[jax.Array] = (),
    chunk: int = 1024,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target, or what is read in its place, and the entropy there.

    About `chunk` tokens have logits at a time, in the forward pass and in the backward pass, which
    computes them again where there is more than one chunk. Chunks are equal, and cut from the last
    axis, so that devices may hold a row each.

    Args:
      hidden: [..., N, D], the state that predicts each target.
      unembedding: [V, D].
      targets: [..., N] int32.
      softcap: as in `logits`.
      spelled: as in `logits`.
      process: [..., V] fp32 logits, and what is `beside` them, to logits again, e.g. at a
        temperature; the same as at sampling.
      read: of processed logits, what takes the place of the log-probability; None: that itself.
      beside: arrays [..., N, ...], cut into chunks with the rest.
      chunk: tokens per step, of all rows together.

    Returns:
      logp and entropy in nats, each [..., N] fp32.
    """
    n = targets.shape[-1]
    rows = targets.ndim - 1
    pieces = max(1, round(targets.size / chunk))

    def step(h: jax.Array, target: jax.Array, *beside: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = process(logits(h, unembedding, softcap=softcap, spelled=spelled), *beside)
        normalizer = jax.nn.logsumexp(scores, axis=-1)
        chosen = jnp.take_along_axis(scores, target[..., None], axis=-1)[..., 0]
        probs = jnp.exp(scores - normalizer[..., None])
        # where: a truncated logit is -inf, and 0 * -inf would be nan, in the gradient too
        entropy = normalizer - jnp.sum(probs * jnp.where(probs > 0, scores, 0.0), axis=-1)
        return chosen - normalizer if read is None else read(scores, target, *beside), entropy

    if pieces == 1:  # the backward pass would hold these logits anyway
        return step(hidden, targets, *beside)
    width = -(-n // min(n, pieces))

    def chunks(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, -n % width) if axis == rows else (0, 0) for axis in range(x.ndim)])
        return jnp.moveaxis(x.reshape(*x.shape[:rows], -1, width, *x.shape[rows + 1 :]), rows, 0)

    _, out = jax.lax.scan(
        lambda carry, xs: (carry, jax.checkpoint(step)(*xs)),
        None,
        [chunks(x) for x in (hidden, targets, *beside)],
    )
    # [chunks, ..., width] each
    logp, entropy = (jnp.moveaxis(x, 0, -2).reshape(*targets.shape[:-1], -1)[..., :n] for x in out)
    return logp, entropy
