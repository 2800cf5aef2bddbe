"""Reward models: a decoder with a linear score of the last token, as sequence classifiers are."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp

from jaxrl.models import huggingface
from jaxrl.models.config import DecoderConfig
from jaxrl.models.decoder import Params
from jaxrl.models.stream import Shardings


def init(hidden_size: int, labels: int = 1) -> Params:
    """A zeroed fp32 head."""
    return {"weight": jnp.zeros((hidden_size, labels))}


def score(params: Params, hidden: jax.Array, last: jax.Array) -> jax.Array:
    """Scores of whole sequences; products are fp32 on every device, whatever the compute dtype.

    Args:
      params: the head.
      hidden: [B, T, D], as from `decoder.hidden`.
      last: [B, S] int32, the place of the last token of each of a row's S sequences.

    Returns:
      [B, S, labels] fp32.
    """
    states = jnp.take_along_axis(hidden, last[..., None], axis=1)
    states = states.astype(jnp.float32)
    return jnp.matmul(states, params["weight"], precision=jax.lax.Precision.HIGHEST)


def load(
    directory: str | Path, *, shardings: Shardings | None = None
) -> tuple[DecoderConfig, Params, Params]:
    """Config, decoder and head of a Hugging Face `...ForSequenceClassification` directory.

    Raises:
      ValueError: as `huggingface.load`; or there is no `score.weight`.
    """
    config, params = huggingface.load(directory, shardings=shardings, classifier=True)
    weight = huggingface.read_tensor(directory, "score.weight")
    return config, params, {"weight": jnp.asarray(weight.T, jnp.float32)}
