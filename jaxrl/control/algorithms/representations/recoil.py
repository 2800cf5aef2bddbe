"""ReCOIL: imitation from a few demonstrations among other data, with no discriminator.

Paper: Sikchi et al. 2023, "Dual RL: Unification and New Methods for Reinforcement and Imitation
Learning".
Idea: imitation is the dual of matching mixtures of visitations, expert with other data: Q rises on
the expert, falls on the rest, and stays consistent along both, so that ways to the expert's states
are valued too. V and the policy follow as in IQL. No reward is read.
Formula: `Q: w (E_rest Q - E_expert Q) + (gamma V(s') - Q)^2 / 2`, `V: expectile of Q`,
`pi: -exp((Q - V) / T) log pi`.
Claim: imitates where the data hardly cover the expert, above methods with a discriminator.
Reading: the trajectories of highest return stand for the demonstrations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import iql
from jaxrl.control.batches import Batch
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    demonstrations: int = 4
    """Trajectories."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    expectile: float = 0.8
    temperature: float = 0.3
    weight: float = 0.5
    """Of raising Q on the expert and lowering it elsewhere; it sets the scale of Q."""


def config() -> Config:
    """Four demonstrations."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    iql_config = shared(iql.Config, config)

    def regress(q: jax.Array, ahead: jax.Array, batch: Transitions) -> tuple[jax.Array, Metrics]:
        expert = batch.extra["expert"]
        loss = control.dual_imitation(
            q, ahead, batch.terminals, expert, discount=config.discount, weight=config.weight
        )
        return loss, {"gap": jnp.mean((2.0 * expert - 1.0) * q)}

    def prepare(data: Transitions) -> dict[str, Transitions]:
        expert_episodes = set(
            np.argsort(-transitions.returns(data))[: config.demonstrations].tolist()
        )
        rest = sorted(set(range(len(transitions.episodes(data)))) - expert_episodes)
        return {
            "expert": transitions.choose(data, sorted(expert_episodes)),
            "offline": transitions.choose(data, rest),
        }

    def sample(key: jax.Array, data: Any, size: int) -> Batch:
        def half(key: jax.Array, part: Transitions, expert: float) -> Transitions:
            rows = replay.uniform(key, part._replace(extra={}), size // 2)
            return rows._replace(extra={"expert": jnp.full(size // 2, expert)})

        first, second = jax.random.split(key)
        return {
            "expert": half(first, data["expert"], 1.0),
            "offline": half(second, data["offline"], 0.0),
        }

    return iql.make(space, iql_config, regress=regress)._replace(prepare=prepare, sample=sample)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
