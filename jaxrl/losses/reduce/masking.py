"""Masked arithmetic that neither values nor gradients leak through.

`0 * nan` is `nan`, and the gradient of a discarded branch is `0 * inf`, also `nan`. So masked
entries are replaced *before* any arithmetic touches them. The contract of every per-token function
in this package: the caller passes its inputs through `sanitize` once (zeros are a safe fill for
log-probabilities, advantages and values alike), calls the loss, and reduces with `aggregate`, which
masks again. Functions that take a `mask` also mask whatever they sum over a row.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

LOG_RATIO_BOUND = 20.0
"""Log-ratios above 20 (a ratio of 4.9e8) continue `exp` along its tangent; see `bounded_exp`."""


def as_float(x: ArrayLike) -> jax.Array:
    """Promotes to at least float32, so that bfloat16 inputs are computed on exactly."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def where_valid(mask: ArrayLike, x: ArrayLike, fill: float = 0.0) -> jax.Array:
    """Replaces the entries of `x` where `mask` is 0 (their gradient is then exactly 0).

    Args:
      mask: bool or 0/1, broadcastable to `x`.
      x: any float array; masked entries may be NaN or inf.
      fill: the value written there.
    """
    return jnp.where(jnp.asarray(mask, bool), x, jnp.asarray(fill, jnp.asarray(x).dtype))


def sanitize(mask: ArrayLike, **arrays: ArrayLike | None) -> dict[str, ArrayLike | None]:
    """`where_valid` on every `[B, T]` keyword array; `[B]`, `[B, 1]` and `None` pass through."""
    return {
        name: where_valid(mask, x) if x is not None and jnp.shape(x) == jnp.shape(mask) else x
        for name, x in arrays.items()
    }


def ratio(logp: jax.Array, behavior_logp: jax.Array) -> jax.Array:
    """Importance ratio `exp(logp - behavior_logp)`, bounded; no gradient to the latter."""
    if jnp.shape(logp) != jnp.shape(behavior_logp):
        raise ValueError(
            f"log-probabilities of shapes {jnp.shape(logp)} and {jnp.shape(behavior_logp)} form no "
            "ratio; both must be [B, T] of the same tokens"
        )
    return bounded_exp(as_float(logp) - jax.lax.stop_gradient(as_float(behavior_logp)))


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """`exp`, continued along its tangent above `LOG_RATIO_BOUND`.

    A log-ratio of 80 then gives a large finite ratio whose square still fits float32, and a
    gradient that is finite and keeps its sign (clipping the argument instead would turn k3 around:
    beyond the bound it would push the policy further away).
    """
    excess = jnp.maximum(log_ratio - LOG_RATIO_BOUND, 0.0)
    return jnp.exp(jnp.minimum(log_ratio, LOG_RATIO_BOUND)) * (1.0 + excess)


def row_sum(mask: jax.Array, x: jax.Array) -> jax.Array:
    """Sum of the valid entries of each row, `[B, T] -> [B]`."""
    return jnp.sum(where_valid(mask, x), axis=-1)


def row_mean(mask: jax.Array, x: jax.Array) -> jax.Array:
    """Mean of the valid entries of each row, `[B, T] -> [B]`; 0 for a row without any."""
    return row_sum(mask, x) / row_count(mask, x.dtype)


def row_count(mask: jax.Array, dtype: jnp.dtype = jnp.float32) -> jax.Array:
    """Number of valid entries of each row, at least 1, `[B, T] -> [B]`."""
    return jnp.maximum(jnp.sum(jnp.asarray(mask, bool), axis=-1), 1).astype(dtype)


def constant(x: ArrayLike) -> jax.Array:
    """`as_float` without a gradient."""
    return jax.lax.stop_gradient(as_float(x))


def token_constant(advantages: jax.Array, like: jax.Array) -> jax.Array:
    """Constant advantages, `[B, T]` or `[B, 1]`: `[B]` would silently run along the tokens."""
    if jnp.shape(advantages) not in (like.shape, (*like.shape[:-1], 1)):
        raise ValueError(
            f"advantages have shape {jnp.shape(advantages)}, but the tokens {like.shape}; pass "
            "[B, T], or [B, 1] for one a sequence (advantages[:, None])"
        )
    return constant(advantages)


def row_constant(rewards: jax.Array, like: jax.Array) -> jax.Array:
    """Constant rewards, `[B]`: one for each row of `like [B, T]`."""
    if jnp.shape(rewards) != like.shape[:1]:
        raise ValueError(f"rewards have shape {jnp.shape(rewards)}; pass [B] = {like.shape[:1]}")
    return constant(rewards)


def indicator(x: jax.Array) -> jax.Array:
    """A bool array as 0/1 float32, for metrics and weights."""
    return jax.lax.stop_gradient(jnp.asarray(x).astype(jnp.float32))


def expectation(logp: jax.Array, x: jax.Array) -> jax.Array:
    """Sum over the last axis of `exp(logp) x`; where the probability is 0, `x` may be inf."""
    supported = jnp.isfinite(logp)
    return jnp.sum(jnp.where(supported, jnp.exp(logp) * jnp.where(supported, x, 0.0), 0.0), axis=-1)


def clean_rewards(rewards: jax.Array, valid: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Float rewards `[N]` with invalid ones zeroed, and `valid` as a bool array."""
    rewards = as_float(rewards)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    if rewards.ndim != 1 or valid.shape != rewards.shape:
        raise ValueError(
            f"rewards have shape {rewards.shape} and valid {valid.shape}; pass [N] for both, one "
            "entry a sample"
        )
    return where_valid(valid, rewards), valid


def group_moments(
    x: jax.Array, group_ids: jax.Array, num_groups: int, valid: jax.Array, ddof: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Count, mean and standard deviation of each sample's group, `[N]` each, in two passes."""
    weight = valid.astype(x.dtype)
    count = jax.ops.segment_sum(weight, group_ids, num_groups)
    mean = jax.ops.segment_sum(x * weight, group_ids, num_groups) / jnp.maximum(count, 1.0)
    squares = jnp.square(x - mean[group_ids]) * weight
    variance = jax.ops.segment_sum(squares, group_ids, num_groups) / jnp.maximum(count - ddof, 1.0)
    return count[group_ids], mean[group_ids], jnp.sqrt(variance)[group_ids]


def entropy_share(entropy: jax.Array, mask: jax.Array) -> jax.Array:
    """Each token's entropy as a share of the largest in its response, a constant.

    Args:
      entropy: `[B, T]`, nats.
      mask: `[B, T]`; masked tokens count as 0.
    """
    entropy = where_valid(mask, constant(entropy))
    return entropy / jnp.maximum(jnp.max(entropy, axis=-1, keepdims=True), 1e-6)
