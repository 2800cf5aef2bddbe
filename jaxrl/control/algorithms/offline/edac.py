"""EDAC: pessimism offline by the least of many critics, made to differ; with no such term, SAC-N.

Paper: An et al. 2021, "Uncertainty-Based Offline RL with Diversified Q-Ensemble".
Idea: the minimum over N critics falls where they disagree, which is outside the data; pushing their
gradients of the action apart lets far fewer critics disagree as much.
Formula: SAC's with `min` over all N, and `diversity sum_(i != j) <g_i, g_j> / (N - 1)` on the
critics; SAC-N has diversity 0.
Claim: SAC-N alone beats earlier offline methods with up to 500 critics; EDAC needs 10 to 50.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.online import sac
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program, offline
from jaxrl.losses import control
from jaxrl.models.control import critics
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    steps: int = 3000
    members: int = 10
    diversity: float = 0.01
    """Weight of the term; 0 is SAC-N. The paper's is 1, for values some ten times as large, whose
    squared errors outweigh it a hundred times as much."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128


def config() -> Config:
    """Ten critics."""
    return Config()


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""

    def apart(key: jax.Array, critic: Any, state: TrainState, batch: Batch) -> jax.Array:
        rows = mixed(batch)

        def slope(member: Any) -> jax.Array:
            sole = jax.tree.map(lambda x: x[None], member)
            total = lambda a: jnp.sum(critics.values(sole, rows.observations, a))  # noqa: E731
            return jax.grad(total)(rows.actions)

        slopes = jax.vmap(slope)(critic)
        return config.diversity * jnp.mean(control.gradient_diversity(slopes))

    sac_config = shared(sac.Config, config, subset=config.members)
    algorithm = sac.make(env.space, sac_config, critic_term=apart if config.diversity else None)
    return (offline(algorithm, steps=config.steps),)
