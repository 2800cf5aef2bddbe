"""Moments of a stream of arrays, a batch at a time (Chan et al. 1979)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Moments = dict[str, jax.Array]
"""`mean` and `variance` [...], and `count`, a scalar, of what went in."""


def start(shape: tuple[int, ...]) -> Moments:
    """Mean 0 and variance 1 of arrays [*shape], which the first batch replaces."""
    return {"mean": jnp.zeros(shape), "variance": jnp.ones(shape), "count": jnp.float32(1e-4)}


def update(moments: Moments, batch: jax.Array) -> Moments:
    """The moments with a further `batch` [N, ...]."""
    size = len(batch)
    count = moments["count"] + size
    apart = jnp.mean(batch, axis=0) - moments["mean"]
    squares = moments["variance"] * moments["count"] + jnp.var(batch, axis=0) * size
    squares += jnp.square(apart) * moments["count"] * size / count
    mean = moments["mean"] + apart * size / count
    return {"mean": mean, "variance": squares / count, "count": count}


def standardise(moments: Moments, x: jax.Array, *, bound: float = 10.0) -> jax.Array:
    """`x` [..., *shape] less the mean, over the standard deviation, at most `bound` in size."""
    scaled = (x - moments["mean"]) / jnp.sqrt(moments["variance"] + 1e-8)
    return jnp.clip(scaled, -bound, bound)
