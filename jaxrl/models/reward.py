"""Reward models: a decoder with a linear score of its states, as sequence classifiers are."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.models.decoder import Params


def score(params: Params, states: jax.Array) -> jax.Array:
    """Scores of states; products are fp32 on every device, whatever the compute dtype.

    Args:
      params: of a decoder with `DecoderConfig.labels`.
      states: [..., D], as from `decoder.hidden`; of a whole sequence, the state of its last token.

    Returns:
      [..., labels] fp32.
    """
    weight = params["score"].astype(jnp.float32)
    return jnp.matmul(states.astype(jnp.float32), weight, precision=jax.lax.Precision.HIGHEST)
