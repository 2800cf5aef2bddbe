"""Label smoothing of supervised fine-tuning: a share of each target goes to all tokens alike."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.extensions.teacher import require_sft
from jaxrl.run.extension import Extension


@dataclasses.dataclass(frozen=True)
class SmoothingConfig:
    """How much of a target is spread."""

    share: float = 0.1
    """Probability that is spread evenly over the vocabulary, above 0 and below 1."""


def label_smoothing(settings: SmoothingConfig) -> Extension:
    """The objective `sft` learns from smoothed targets, and evaluations report that loss.

    DPO smooths its labels by an argument, `--objective.policy-args.label_smoothing`.

    Paper: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision"
    """

    def check(config: Config) -> None:
        if not 0 < settings.share < 1:
            raise ValueError(
                f"label_smoothing.share={settings.share}: use a share above 0 and below 1"
            )
        require_sft(config, "label_smoothing")

    return Extension(check=check, provides={"reading": functools.partial(smoothed, settings.share)})


def smoothed(share: float, logits: jax.Array, theirs: Any, targets: jax.Array) -> jax.Array:
    """Expected log-probability under smoothed targets.

    Args:
      share: that is spread.
      logits: [..., V].
      theirs: unused, of a teacher.
      targets: [...] int32.
    """
    logp = jax.nn.log_softmax(logits)
    target_logp = jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
    return (1 - share) * target_logp + share * jnp.mean(logp, axis=-1)
