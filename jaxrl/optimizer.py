"""The optimizer and its learning-rate schedule, from optax."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import optax


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a warm-up, a schedule and global-norm clipping."""

    learning_rate: float = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay after the warm-up, to zero at the last step."""
    warmup_steps: int = 0
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Decoupled; norms and other vectors are never decayed."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 turns clipping off."""


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate at each of `steps` updates."""
    decay_steps = max(1, steps - config.warmup_steps)
    decay = {
        "constant": optax.constant_schedule(config.learning_rate),
        "linear": optax.linear_schedule(config.learning_rate, 0.0, decay_steps),
        "cosine": optax.cosine_decay_schedule(config.learning_rate, decay_steps),
    }[config.schedule]
    if not config.warmup_steps:
        return decay
    warmup = optax.linear_schedule(
        config.learning_rate / config.warmup_steps, config.learning_rate, config.warmup_steps
    )
    return optax.join_schedules([warmup, decay], [config.warmup_steps])


def make(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The transformation for a run of `steps` updates."""

    def decayed(params: optax.Params) -> optax.Params:
        def matrix(path: tuple[Any, ...], _: Any) -> bool:
            name = jax.tree_util.keystr(path)
            return not any(vector in name for vector in ("norm", "bias", "correction"))

        return jax.tree_util.tree_map_with_path(matrix, params)

    adamw = optax.adamw(
        learning_rate(config, steps),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=decayed,
    )
    if not config.clip_norm:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)
