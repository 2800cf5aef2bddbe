"""RIQL: IQL that outliers cannot move: normalised states, Huber's loss, a quantile of an ensemble.

Paper: Yang et al. 2023, "Towards Robust Offline Reinforcement Learning under Diverse Data
Corruption".
Idea: corrupted dynamics give heavy-tailed targets, which Huber's loss bounds; corrupted states and
actions give wild values, over which a low quantile of several critics is taken.
Formula: `V: expectile of Q_alpha - V`, `Q_i: huber(r + gamma V(s') - Q_i)`,
`pi: exp(beta (Q_alpha - V)) log pi`, `Q_alpha` the alpha-quantile over the members.
Claim: far above IQL, CQL and EDAC when 30% of states, actions, rewards or dynamics are corrupted.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.control.algorithm import Algorithm, Metrics, standardised
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import iql
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    expectile: float = 0.8
    temperature: float = 0.3
    members: int = 5
    quantile: float = 0.25
    huber: float = 0.5
    """Width of the quadratic zone, in units of the value."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    iql_config = shared(iql.Config, config)

    def low(q: jax.Array) -> jax.Array:
        return jnp.quantile(q, config.quantile, axis=0)

    def regress(q: jax.Array, ahead: jax.Array, batch: Transitions) -> tuple[jax.Array, Metrics]:
        target = control.td_target(batch.rewards, batch.terminals, ahead, discount=config.discount)
        loss = control.huber(q, target, width=config.huber)
        return loss, {"q_spread": jnp.mean(jnp.std(q, axis=0))}

    inner = iql.make(space, iql_config, pool=low, regress=regress)
    return standardised(inner, space)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
