"""Projections by weights of any kind."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dense(weight: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The weight as one array of the compute dtype."""
    return weight.astype(dtype)


def project(x: jax.Array, weight: jax.Array, *, inputs: int = 1) -> jax.Array:
    """Contract the last `inputs` axes of x with the first of the weight, in x's dtype."""
    return jnp.tensordot(x, dense(weight, x.dtype), axes=inputs)


def project_ragged(x: jax.Array, weight: jax.Array, sizes: jax.Array) -> jax.Array:
    """Project runs of rows by one matrix each.

    Args:
      x: [M, I], rows of one expert next to each other.
      weight: [E, I, O].
      sizes: [E] int32 rows of each expert, M in all.

    Returns:
      [M, O] in x's dtype.
    """
    return jax.lax.ragged_dot(x, dense(weight, x.dtype), sizes)
