"""The losses of the Tinker API, by the objectives of `jaxrl.losses`.

Each is a sum over tokens, not a mean, of what one token's log-probability and inputs give
(https://tinker-docs.thinkingmachines.ai/losses).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from jaxrl.launch.server.tinker.wire import Batch
from jaxrl.losses.policy import objectives, surrogates
from jaxrl.losses.reduce.masking import ratio, token_constant
from jaxrl.models.config import DecoderConfig

PerToken = Callable[[jax.Array, Mapping[str, jax.Array], Mapping[str, jax.Array]], jax.Array]
"""`(logp [B, T], inputs [B, T] by name, settings by name) -> loss [B, T]`."""


class Loss(NamedTuple):
    """A loss that a client may name."""

    per_token: PerToken
    inputs: tuple[str, ...]
    """Names of the arrays that each datum has beside `target_tokens`."""
    settings: dict[str, float]
    """With their defaults."""


def _cross_entropy(
    logp: jax.Array, inputs: Mapping[str, jax.Array], settings: Mapping[str, jax.Array]
) -> jax.Array:
    return objectives.reinforce(logp, inputs["weights"])[0]


def _importance_sampling(
    logp: jax.Array, inputs: Mapping[str, jax.Array], settings: Mapping[str, jax.Array]
) -> jax.Array:
    return -ratio(logp, inputs["logprobs"]) * token_constant(inputs["advantages"], logp)


def _ppo(
    logp: jax.Array, inputs: Mapping[str, jax.Array], settings: Mapping[str, jax.Array]
) -> jax.Array:
    r = ratio(logp, inputs["logprobs"])
    return objectives.clipped_surrogate(r, inputs["advantages"], **_bounds(settings))[0]


def _cispo(
    logp: jax.Array, inputs: Mapping[str, jax.Array], settings: Mapping[str, jax.Array]
) -> jax.Array:
    clip = _bounds(settings)
    return surrogates.cispo(logp, inputs["logprobs"], inputs["advantages"], **clip)[0]


def _bounds(settings: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The clients' bounds of the ratio as distances from 1."""
    return {
        "clip_low": 1.0 - settings["clip_low_threshold"],
        "clip_high": settings["clip_high_threshold"] - 1.0,
    }


_RL = ("logprobs", "advantages")
LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy, ("weights",), {}),
    "importance_sampling": Loss(_importance_sampling, _RL, {}),
    "ppo": Loss(_ppo, _RL, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": Loss(_cispo, _RL, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
}


def check(model: DecoderConfig, batch: Batch, context: int) -> None:
    """Refuse a batch that no update can be made of.

    Args:
      model: the decoder's shape.
      batch: of a request.
      context: most tokens of a datum.

    Raises:
      ValueError: names the field, its value and the remedy.
    """
    if batch.loss not in LOSSES:
        raise ValueError(
            f"loss_fn={batch.loss[:60]!r} is not supported; choose one of {', '.join(LOSSES)}"
        )
    loss = LOSSES[batch.loss]
    for name, value in batch.settings.items():
        if name not in loss.settings:
            raise ValueError(
                f"loss_fn_config[{name[:60]!r}] is no setting of {batch.loss}; it has "
                f"{', '.join(loss.settings) or 'none'}"
            )
        if not 0 <= value < float("inf"):
            raise ValueError(f"loss_fn_config[{name!r}]={value}: must be at least 0 and finite")
    for i, datum in enumerate(batch.data):
        if set(datum.inputs) != set(loss.inputs):
            raise ValueError(
                f"data[{i}].loss_fn_inputs has {_names(datum.inputs)}; {batch.loss} takes "
                f"target_tokens, {', '.join(loss.inputs)}"
            )
        if len(datum.tokens) > context:
            raise ValueError(
                f"data[{i}].model_input has {len(datum.tokens)} tokens, more than {context}; "
                "shorten it, or start the server with a greater --max-context-tokens"
            )
        for name, array in (("model_input", datum.tokens), ("target_tokens", datum.targets)):
            check_tokens(model, array, f"data[{i}].{name}")


def check_tokens(model: DecoderConfig, tokens: np.ndarray, where: str) -> None:
    """Raise a ValueError for what is no token of the model."""
    wrong = tokens[(tokens < 0) | (tokens >= model.vocab_size)]
    if len(wrong):
        raise ValueError(
            f"{where} has {wrong[0]}; the model's tokens are 0 to {model.vocab_size - 1}"
        )


def _names(inputs: Mapping[str, np.ndarray]) -> str:
    return ", ".join(["target_tokens", *(name[:60] for name in inputs)][:9])
