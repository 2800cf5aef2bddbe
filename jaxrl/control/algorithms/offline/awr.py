"""AWR: regression on the data's actions, weighted by how much the return beat the state's value.

Paper: Peng et al. 2019, "Advantage-Weighted Regression: Simple and Scalable Off-Policy RL".
Idea: two regressions: a value on the returns of the data, a policy on its actions with weights
exponential in return minus value. No bootstrap, so nothing can diverge and nothing is stitched.
Formula: `V: (V - G)^2 / 2`, `pi: -min(exp((G - V) / T), high) log pi(a | s)`, `G` the return to go.
Claim: competitive with off-policy methods, and able to learn from fixed data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh, of_actor
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control, value
from jaxrl.models.control import critics, policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    temperature: float = 0.3


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)

    def init(key: jax.Array) -> TrainState:
        value_key, actor_key = jax.random.split(key)
        v = critics.init(value_key, space.observation, config.hidden, members=1)
        actor = policies.gaussian_init(actor_key, space.observation, config.hidden, space.action)
        return fresh({"value": v, "actor": actor}, {"value": adam, "actor": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        reached = rows.extra["return_to_go"]

        def value_loss(v: Any) -> tuple[jax.Array, Metrics]:
            values = critics.values(v, rows.observations)[0]
            return jnp.mean(value.squared_error(values, reached)), {"v": jnp.mean(values)}

        state, value_metrics = descend(state, "value", adam, value_loss)
        ahead = reached - critics.values(state.params["value"], rows.observations)[0]
        weight = control.advantage_weight(ahead, temperature=config.temperature, high=20.0)

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            mean, std = policies.gaussian(actor, rows.observations)
            logp = policies.gaussian_log_prob(mean, std, rows.actions)
            return -jnp.mean(weight * logp), {"weight": jnp.mean(weight)}

        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        return state.replace(step=state.step + 1), value_metrics | actor_metrics

    def prepare(data: Transitions) -> Transitions:
        reached = transitions.returns_to_go(data, config.discount)
        return data._replace(extra={**data.extra, "return_to_go": reached})

    act, best = of_actor(policies.gaussian_act), of_actor(policies.gaussian_mode)
    return Algorithm(init, update, act, best, config.batch_size, prepare=prepare)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
