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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data.offline.transitions import Transitions
from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.types import TrainState
from losses import control, value
from models.control import critics, policies


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
    """The paper's, with small networks."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)

    def init(key: jax.Array) -> TrainState:
        v_key, q_key, actor_key = jax.random.split(key, 3)
        inputs = space.observation + space.action
        critic = critics.init(q_key, inputs, config.hidden, members=config.members)
        v = critics.init(v_key, space.observation, config.hidden, members=1)
        actor = policies.gaussian_init(actor_key, space.observation, config.hidden, space.action)
        moments = {"mean": jnp.zeros(space.observation), "std": jnp.ones(space.observation)}
        params = {"value": v, "critic": critic, "target": critic, "actor": actor}
        parts = dict.fromkeys(("value", "critic", "actor"), adam)
        return fresh(params | {"moments": moments}, parts)

    def normal(params: Any, observation: jax.Array) -> jax.Array:
        return (observation - params["moments"]["mean"]) / params["moments"]["std"]

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        moments = {name: batch.extra[name][0] for name in ("mean", "std")}
        state = state.replace(params=state.params | {"moments": moments})
        here, ahead = (
            normal(state.params, s) for s in (batch.observations, batch.next_observations)
        )
        every = critics.values(state.params["target"], here, batch.actions)
        q_data = jnp.quantile(every, config.quantile, axis=0)

        def value_loss(v: Any) -> tuple[jax.Array, Metrics]:
            v_here = critics.values(v, here)[0]
            loss = value.expectile_loss(v_here, q_data, tau=config.expectile)
            return jnp.mean(loss), {"v": jnp.mean(v_here)}

        state, value_metrics = descend(state, "value", adam, value_loss)
        v_here, v_next = (critics.values(state.params["value"], s)[0] for s in (here, ahead))
        target = control.td_target(batch.rewards, batch.terminals, v_next, discount=config.discount)
        weight = control.advantage_weight(q_data - v_here, temperature=config.temperature)

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, here, batch.actions)
            loss = control.huber(q, target, width=config.huber)
            return jnp.sum(jnp.mean(loss, axis=1)), {"q_spread": jnp.mean(jnp.std(q, axis=0))}

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            mean, std = policies.gaussian(actor, here)
            logp = policies.gaussian_log_prob(mean, std, batch.actions)
            return -jnp.mean(weight * logp), {"weight": jnp.mean(weight)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(state.params["target"], state.params["critic"], config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, value_metrics | critic_metrics | actor_metrics

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return policies.gaussian_act(key, params["actor"], normal(params, observation))

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return policies.gaussian(params["actor"], normal(params, observation))[0]

    def prepare(data: Transitions) -> Transitions:
        mean, std = data.observations.mean(axis=0), data.observations.std(axis=0) + 1e-3
        rows = {"mean": mean, "std": std}
        wide = {k: np.broadcast_to(v, data.observations.shape) for k, v in rows.items()}
        return data._replace(extra={**data.extra, **wide})

    return Algorithm(init, update, act, best, config.batch_size, prepare)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
