"""PA-RL: actions are optimised against the critic, then any policy learns them by its own loss.

Paper: Mark et al. 2024, "Policy Agnostic RL: Offline RL and Online RL Fine-Tuning of Any Class and
Backbone".
Idea: no gradient of the value passes through the policy. Of several samples of a diffusion policy
the best by Q are kept and moved a few steps uphill on Q; the policy imitates the result, and the
critic's target is taken at it too.
Formula: `a_i ~ pi(s)`; best of k by Q; `a <- a + eta grad_a Q(s, a)`, T times; `pi: denoising of
the best`, `y = r + gamma min_e Q_e(s', a*(s'))`.
Claim: up to twice the return of earlier fine-tuning, for diffusion and transformer policies alike.
Reading: half of the policy's batch imitates the data, so that it cannot leave it for good.
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
from jaxrl.control.program import Program, offline_first
from jaxrl.types import TrainState
from losses import control, value
from models.control import critics, policies


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
    members: int = 4
    noise_steps: int = 5
    """Of the diffusion."""
    samples: int = 4
    """k."""
    ascent: int = 3
    """T."""
    rate: float = 0.03
    """eta; a step is of this length in each dimension, by the gradient's sign."""


def config() -> Config:
    """A small diffusion policy."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)
    kept = jnp.cumprod(1.0 - policies.diffusion_schedule(config.noise_steps))

    def init(key: jax.Array) -> TrainState:
        critic_key, actor_key = jax.random.split(key)
        inputs = space.observation + space.action
        sizes = {"members": config.members, "norm": True}
        critic = critics.init(critic_key, inputs, config.hidden, **sizes)
        actor = policies.field_init(actor_key, space.observation, config.hidden, space.action)
        params = {"critic": critic, "target": critic, "actor": actor}
        return fresh(params, {"critic": adam, "actor": adam})

    def optimised(key: jax.Array, params: Any, states: jax.Array, critic: Any) -> jax.Array:
        """The best of the policy's samples at states [..., O], moved uphill on Q."""

        def worth(states: jax.Array, actions: jax.Array) -> jax.Array:
            return value.ensemble_target(critics.values(critic, states, actions))

        def height(actions: jax.Array) -> jax.Array:
            return jnp.sum(jnp.min(critics.values(critic, states, actions), axis=0))

        many = jnp.broadcast_to(states, (config.samples, *states.shape))
        given = {"steps": config.noise_steps}
        drawn = policies.diffusion(key, params["actor"], many, space.action, **given)
        first = jnp.argmax(worth(many, drawn), axis=0)[None, ..., None]
        best = jnp.take_along_axis(drawn, first, axis=0)[0]
        for _ in range(config.ascent):
            best = jnp.clip(best + config.rate * jnp.sign(jax.grad(height)(best)), -1.0, 1.0)
        return best

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        next_key, here_key, time_key, noise_key = jax.random.split(key, 4)
        target = state.params["target"]
        ahead = optimised(next_key, state.params, batch.next_observations, target)
        v_next = value.ensemble_target(critics.values(target, batch.next_observations, ahead))
        bellman = control.td_target(
            batch.rewards, batch.terminals, v_next, discount=config.discount
        )

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, batch.observations, batch.actions)
            return jnp.sum(jnp.mean(value.squared_error(q, bellman), 1)), {"q": jnp.mean(q)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        better = optimised(here_key, state.params, batch.observations, state.params["critic"])
        own = (jnp.arange(len(better)) % 2 == 0)[:, None]
        taught = jnp.where(own, better, batch.actions)
        step = jax.random.randint(time_key, (len(better), 1), 0, config.noise_steps)
        noise = jax.random.normal(noise_key, taught.shape)
        noisy = jnp.sqrt(kept[step]) * taught + jnp.sqrt(1.0 - kept[step]) * noise

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            found = policies.field(actor, batch.observations, noisy, step / config.noise_steps)
            return jnp.mean(control.denoising(found, noise)), {}

        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(target, state.params["critic"], config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, critic_metrics | actor_metrics

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return optimised(key, params, observation, params["critic"])

    return Algorithm(init, update, act, act, config.batch_size)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline, and then online if asked."""
    algorithm = make(env.space, config)
    return offline_first(algorithm, env, steps=config.steps, online_steps=config.online_steps)
