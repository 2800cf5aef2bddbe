"""PA-RL: actions are optimised against the critic, then any policy learns them by its own loss.

Paper: Mark et al. 2024, "Policy Agnostic RL: Offline RL and Online RL Fine-Tuning of Any Class and
Backbone".
Idea: no gradient of the value passes through the policy. Of several samples of a diffusion policy
the best by Q are kept and moved a few steps uphill on Q; the policy imitates the result, and the
critic's target is taken at it too.
Formula: `a_i ~ pi(s)`; best of k by Q; `a <- a + eta grad_a Q(s, a)`, T times; `pi: denoising of
the best`, `y = r + gamma min_e Q_e(s', a*(s'))`.
Claim: up to twice the return of earlier fine-tuning, for diffusion and transformer policies alike.
Of a row's actions on the way uphill the one of highest Q is kept, as the authors have it.
Reading: half of the policy's loss imitates the data, so that it cannot leave it for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
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
    members: int = 4
    noise_steps: int = 5
    """Of the diffusion."""
    samples: int = 4
    """k."""
    ascent: int = 10
    """T."""
    rate: float = 3e-4
    """eta, the authors'; a step is as long as eta times the gradient."""


def config() -> Config:
    """A small diffusion policy."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)
    alpha_bar = jnp.cumprod(1.0 - policies.diffusion_schedule(config.noise_steps))

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
            return jnp.min(critics.values(critic, states, actions), axis=0)

        def height(actions: jax.Array) -> tuple[jax.Array, jax.Array]:
            q = worth(states, actions)
            return jnp.sum(q), q

        many = jnp.broadcast_to(states, (config.samples, *states.shape))
        settings = {"steps": config.noise_steps}
        samples = policies.diffusion(key, params["actor"], many, space.action, **settings)
        first = jnp.argmax(worth(many, samples), axis=0)[None, ..., None]
        actions = jnp.take_along_axis(samples, first, axis=0)[0]

        def climb(carry: tuple, _: None) -> tuple[tuple, None]:
            actions, best, top = carry
            slope, q = jax.grad(height, has_aux=True)(actions)
            best = jnp.where((q > top)[..., None], actions, best)
            actions = jnp.clip(actions + config.rate * slope, -1.0, 1.0)
            return (actions, best, jnp.maximum(q, top)), None

        start = (actions, actions, jnp.full(actions.shape[:-1], -jnp.inf))
        (actions, best, top), _ = jax.lax.scan(climb, start, length=config.ascent)
        return jnp.where((worth(states, actions) > top)[..., None], actions, best)

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        next_key, here_key, time_key, noise_key = jax.random.split(key, 4)
        target = state.params["target"]
        ahead = optimised(next_key, state.params, rows.next_observations, target)
        v_next = value.ensemble_target(critics.values(target, rows.next_observations, ahead))
        bellman = control.td_target(rows.rewards, rows.terminals, v_next, discount=config.discount)

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, rows.observations, rows.actions)
            return jnp.sum(jnp.mean(value.squared_error(q, bellman), 1)), {"q": jnp.mean(q)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        better = optimised(here_key, state.params, rows.observations, state.params["critic"])
        clean_actions = jnp.stack([better, rows.actions])
        shape = clean_actions.shape
        step = jax.random.randint(time_key, (*shape[:-1], 1), 0, config.noise_steps)
        noise = jax.random.normal(noise_key, shape)
        noisy = jnp.sqrt(alpha_bar[step]) * clean_actions + jnp.sqrt(1.0 - alpha_bar[step]) * noise
        states = jnp.broadcast_to(rows.observations, (*shape[:-1], space.observation))

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            predicted_noise = policies.field(actor, states, noisy, step / config.noise_steps)
            return jnp.mean(control.denoising(predicted_noise, noise)), {}

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
