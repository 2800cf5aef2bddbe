"""Figures of a sequence that is there: what a model says of each token, given those before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.models import decoder
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params

ROWS = 64
"""Positions whose logits are held at once."""


def by_position(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    length: jax.Array,
    figures: Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]],
) -> tuple[Any, ...]:
    """Figures of every token but the first, computed `ROWS` at a time; within jit.

    Args:
      config: the decoder.
      params: as from `decoder.unstack`.
      tokens: [P] int32; P is a multiple of `ROWS`.
      length: [] int32, how many of them are real.
      figures: `(hidden [R, D], next tokens [R]) -> arrays [R, ...]`, where R is `ROWS`.

    Returns:
      What `figures` returns, [P, ...] each. Entry i is of token i + 1, and those from `length - 1`
      on mean nothing.
    """
    width = tokens.shape[0]
    index = jnp.arange(width)
    positions = jnp.where(index < length, index, width)[None]
    cache = decoder.empty_cache(config, 1, width)
    hidden, _ = decoder.extend(config, params, tokens[None], positions, cache)
    parts = (
        hidden[0].reshape(-1, ROWS, hidden.shape[-1]),
        jnp.roll(tokens, -1).reshape(-1, ROWS),
    )
    outputs = jax.lax.map(lambda part: figures(*part), parts)
    return tuple(a.reshape(width, *a.shape[2:]) for a in outputs)
