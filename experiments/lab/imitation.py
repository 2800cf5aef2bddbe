"""SASR's rule, of the recipe and of the lab: whether an update imitates or explores.

The gradient of imitation tells how much is left to imitate. `norms` holds two norms of it, scalars:
`last`, in the last update that imitated, and `warm`, at the end of the warm-up.

Paper: Chen et al. 2025, "Step-wise Adaptive Integration of Supervised Fine-tuning and
  Reinforcement Learning for Task-Specific LLMs"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class ImitationConfig:
    """How often an update imitates."""

    warmup_steps: int = 20
    """Updates that imitate at the start."""
    gamma: float = 1.0
    """Weight of the gradient norm at the end of the warm-up in the probability of imitation."""


def drawn(
    settings: ImitationConfig,
    norms: Mapping[str, jax.Array],
    step: jax.Array,
    seed: int | jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Whether an update imitates, a scalar bool, and the chance of it, a scalar float32.

    Formula: `p = last / (last + gamma warm)`; 1 while warming up

    Args:
      settings: of the rule.
      norms: see above.
      step: scalar int32, updates done.
      seed: of the draws.
    """
    last, warm = norms["last"], norms["warm"]
    share = last / jnp.maximum(last + settings.gamma * warm, 1e-8)
    share = jnp.where(step < settings.warmup_steps, 1.0, share)
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.random.uniform(key) < share, share


def noted(
    settings: ImitationConfig,
    norms: Mapping[str, jax.Array],
    step: jax.Array,
    imitated: jax.Array,
    norm: jax.Array,
) -> dict[str, jax.Array]:
    """The norms after an update whose gradient had this one; one that is not finite is left out."""
    last = jnp.where(imitated & jnp.isfinite(norm), norm, norms["last"])
    return {"last": last, "warm": jnp.where(step < settings.warmup_steps, last, norms["warm"])}
