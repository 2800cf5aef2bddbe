"""SAC: an actor that maximises value and entropy, a critic of two, a temperature that tunes itself.

Paper: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications".
Idea: the policy is a squashed Gaussian; the Bellman target takes the least of two critics and adds
the entropy of the next action; the temperature holds the entropy at minus the action's dimensions.
Formula: `y = r + gamma (min_i Q_i(s', a') - alpha log pi(a' | s'))`, `pi: min alpha log pi - Q`.
Claim: matches or beats DDPG, PPO and TD3 on continuous control, with little tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from data.offline.transitions import Transitions
from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, online
from jaxrl.types import TrainState
from losses import control, value
from models.control import critics, policies


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 20_000
    worlds: int = 1
    updates: int = 1
    """Updates after each step of the worlds."""
    warmup: int = 1000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.005
    members: int = 2


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)
    trained = {"critic": adam, "actor": adam, "temperature": adam}

    def init(key: jax.Array) -> TrainState:
        critic_key, actor_key = jax.random.split(key)
        inputs = space.observation + space.action
        critic = critics.init(critic_key, inputs, config.hidden, members=config.members)
        actor = policies.squashed_init(actor_key, space.observation, config.hidden, space.action)
        params = {"critic": critic, "target": critic, "actor": actor, "temperature": jnp.zeros(())}
        return fresh(params, trained)

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        next_key, own_key = jax.random.split(key)
        alpha = jnp.exp(state.params["temperature"])

        ahead = policies.squashed(state.params["actor"], batch.next_observations)
        next_actions, next_logp = policies.squashed_sample(next_key, *ahead)
        q_next = critics.values(state.params["target"], batch.next_observations, next_actions)
        soft = value.ensemble_target(q_next) - alpha * next_logp
        target = control.td_target(batch.rewards, batch.terminals, soft, discount=config.discount)

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, batch.observations, batch.actions)
            return jnp.sum(jnp.mean(value.squared_error(q, target), 1)), {"q": jnp.mean(q)}

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            mean, std = policies.squashed(actor, batch.observations)
            actions, logp = policies.squashed_sample(own_key, mean, std)
            q = critics.values(state.params["critic"], batch.observations, actions)
            loss = control.soft_actor(logp, jnp.min(q, axis=0), temperature=alpha)
            return jnp.mean(loss), {"logp": logp}

        def temperature_loss(log_alpha: jax.Array) -> tuple[jax.Array, Metrics]:
            wanted = -float(space.action)
            loss = control.temperature_loss(log_alpha, logp, target_entropy=wanted)
            return jnp.mean(loss), {"entropy": -jnp.mean(logp)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        logp = actor_metrics.pop("logp")
        state, temperature_metrics = descend(state, "temperature", adam, temperature_loss)
        moved = critics.polyak(state.params["target"], state.params["critic"], config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, critic_metrics | actor_metrics | temperature_metrics

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return policies.squashed_sample(key, *policies.squashed(params["actor"], observation))[0]

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return jnp.tanh(policies.squashed(params["actor"], observation)[0])

    return Algorithm(init, update, act, best, config.batch_size)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, from nothing."""
    return (
        online(
            make(env.space, config),
            env,
            steps=config.steps,
            worlds=config.worlds,
            updates=config.updates,
            warmup=config.warmup,
        ),
    )
