"""AWAC: the regression of AWR with a bootstrapped critic in place of the return.

Paper: Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets".
Idea: an implicit constraint: the actor only regresses on actions of the data (or the buffer),
weighted by the critic's advantage, so no behaviour model is needed and online data just add to it.
Formula: `y = r + gamma min_i Q_i(s', a')`, `a' ~ pi`; `pi: -exp((Q(s, a) - Q(s, pi)) / T) log pi`.
Claim: learns offline and continues to improve online, where earlier methods stall.
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
from jaxrl.control.program import Program, offline_first
from jaxrl.losses import control, value
from jaxrl.models.control import critics, policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    online_steps: int = 0
    """Steps of the environment after the offline phase, with the data kept in half of a batch."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    temperature: float = 0.3


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)

    def init(key: jax.Array) -> TrainState:
        critic_key, actor_key = jax.random.split(key)
        critic = critics.init(critic_key, space.observation + space.action, config.hidden)
        actor = policies.gaussian_init(actor_key, space.observation, config.hidden, space.action)
        params = {"critic": critic, "target": critic, "actor": actor}
        return fresh(params, {"critic": adam, "actor": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        next_key, here_key = jax.random.split(key)

        def own_value(key: jax.Array, critic: Any, states: jax.Array) -> jax.Array:
            actions = policies.gaussian_act(key, state.params["actor"], states)
            return value.ensemble_target(critics.values(critic, states, actions))

        v_next = own_value(next_key, state.params["target"], rows.next_observations)
        target = control.td_target(rows.rewards, rows.terminals, v_next, discount=config.discount)

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, rows.observations, rows.actions)
            return jnp.sum(jnp.mean(value.squared_error(q, target), 1)), {"q": jnp.mean(q)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        critic = state.params["critic"]
        q_data = jnp.min(critics.values(critic, rows.observations, rows.actions), axis=0)
        ahead = q_data - own_value(here_key, critic, rows.observations)
        weight = control.advantage_weight(ahead, temperature=config.temperature)

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            mean, std = policies.gaussian(actor, rows.observations)
            logp = policies.gaussian_log_prob(mean, std, rows.actions)
            return -jnp.mean(weight * logp), {"weight": jnp.mean(weight)}

        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(state.params["target"], critic, config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, critic_metrics | actor_metrics

    act, best = of_actor(policies.gaussian_act), of_actor(policies.gaussian_mode)
    return Algorithm(init, update, act, best, config.batch_size)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline, and then online if asked."""
    algorithm = make(env.space, config)
    return offline_first(algorithm, env, steps=config.steps, online_steps=config.online_steps)
