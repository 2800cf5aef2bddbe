"""What a run of a model with recurrent layers cannot have."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from jaxrl.config import Config, stages
from jaxrl.models.config import DecoderConfig


def check(config: Config, model: DecoderConfig) -> None:
    """Refuse settings that recurrent layers do not work with.

    Raises:
      ValueError: naming the field, its value and the remedy.
    """
    if not model.recurrent:
        return
    for done, staged in stages.all_of(config):
        with stages.of_stage(config, done):
            for setting, why in _refused(staged):
                raise ValueError(f"{setting}: {model.family} has recurrent layers, {why}")


def _refused(config: Config) -> Iterator[tuple[str, str]]:
    """Settings, and why they are refused, with the remedy."""
    if config.packing.share_prompts:
        yield (
            "packing.share_prompts=True",
            "which read no trees of prompts; set it to false",
        )
    if jax.device_count() > 1:
        yield (
            f"{jax.device_count()} devices",
            "which are computed on one device alone; run on one",
        )
    if config.lora.base != "plain":
        yield (
            f"lora.base={config.lora.base!r}",
            "whose projections are not quantised; set it to 'plain'",
        )
    if config.sampling.weights != "trained":
        yield (
            f"sampling.weights={config.sampling.weights!r}",
            "whose projections are not quantised; set it to 'trained'",
        )
    if config.rollout.chunks.size:
        yield (
            f"rollout.chunks.size={config.rollout.chunks.size}",
            "with which responses are not sampled in chunks; set it to 0",
        )
