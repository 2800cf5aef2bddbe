"""AW and RW: an offline algorithm sees good trajectories more often, and nothing else changes.

Paper: Hong et al. 2023, "Harnessing Mixed Offline Reinforcement Learning Datasets via Trajectory
Weighting".
Idea: on data with few good trajectories, staying near the data means staying near bad ones; drawing
trajectories by their return (RW), or by how far it is above what their first state promises (AW),
makes the behaviour itself better.
Formula: `p(tau) ~ exp(G / alpha)` or `exp((G - V(s_0)) / alpha)`, `G` scaled to [0, 1], V the ridge
regression of G on the first state; steps are uniform inside a trajectory.
Claim: CQL, IQL and TD3+BC reach what the data allow, where they reached a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import bc, iql
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program, offline
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions

DISCRETE = None
"""Either kind of action."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are the algorithm's own."""

    weighting: Literal["advantage", "return", "uniform"] = "advantage"
    algorithm: Literal["iql", "bc"] = "iql"
    steps: int = 3000
    alpha: float = 0.1
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128


def config() -> Config:
    """AW on IQL, with the paper's alpha."""
    return Config()


def weights(data: Transitions, kind: str, alpha: float) -> np.ndarray:
    """The probability of each step, [N] float64, constant over a trajectory but for its length."""
    reached, where = transitions.returns(data), transitions.episodes(data)
    reached = (reached - reached.min()) / max(np.ptp(reached), 1e-8)
    if kind == "uniform":
        return np.full(len(data.rewards), 1.0 / len(data.rewards))
    if kind == "advantage":
        first = np.stack([np.append(data.observations[e.start], 1.0) for e in where])
        ridge = first.T @ first + 1e-3 * np.eye(first.shape[1])
        reached = reached - first @ np.linalg.solve(ridge, first.T @ reached)
    trajectory_weights = np.exp((reached - reached.max()) / alpha)
    lengths = np.array([e.stop - e.start for e in where])
    return np.repeat(trajectory_weights / trajectory_weights.sum() / lengths, lengths)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    module = {"iql": iql, "bc": bc}[config.algorithm]
    module_config = shared(module.Config, config)

    def prepare(data: Transitions) -> Transitions:
        cumulative = np.cumsum(weights(data, config.weighting, config.alpha))
        return data._replace(extra={**data.extra, "cumulative": cumulative.astype(np.float32)})

    def sample(key: jax.Array, data: Transitions, size: int) -> Batch:
        draws = jax.random.uniform(key, (size,)) * data.extra["cumulative"][-1]
        rows = jnp.searchsorted(data.extra["cumulative"], draws)
        rows = jnp.minimum(rows, len(data.rewards) - 1)
        return {"offline": jax.tree.map(lambda x: x[rows], data)}

    algorithm = module.make(env.space, module_config)._replace(prepare=prepare, sample=sample)
    return (offline(algorithm, steps=config.steps),)
