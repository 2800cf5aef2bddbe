"""HILP: a space where distance is the time between states; a policy for each direction in it.

Paper: Park et al. 2024, "Foundation Policies with Hilbert Representations".
Idea: an embedding is learnt from any data so that distances are temporal, by goal-conditioned value
learning with hindsight goals; a policy of a latent z then moves along z. A goal is reached with no
further training by pointing z at it. The rewards of the data serve to find the goal alone.
Formula: `phi: expectile of -1[s != g] + gamma V(s', g) - V(s, g)`, `V(s, g) = -|phi(s) - phi(g)|`;
IQL of `r = (phi(s') - phi(s)) . z`, `|z| = 1`; acts with `z ~ phi(g) - phi(s)`.
Claim: zero-shot goals and rewards, often above methods made for each.
Reading: the goal of a task is the mean of the next states of its data, weighted by their rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data.offline import transitions
from data.offline.transitions import Transitions
from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.types import TrainState
from launch.control import iql, shared
from losses import control, value
from models.control import critics, mlp


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    steps: int = 3000
    features: int = 16
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    batch_size: int = 128
    discount: float = 0.95
    polyak: float = 0.005
    distance_expectile: float = 0.95
    expectile: float = 0.9
    temperature: float = 0.2
    ahead: float = 0.6
    """Share of goals that lie ahead in the same trajectory; the rest are any states."""


def config() -> Config:
    """The paper's, with small networks."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)
    own = shared(iql.Config, config)
    inner = iql.make(space._replace(observation=space.observation + config.features), own)

    def closeness(phi: Any, states: jax.Array, goals: jax.Array) -> jax.Array:
        apart = mlp.apply(phi, states) - mlp.apply(phi, goals)
        return -jnp.sqrt(jnp.sum(jnp.square(apart), axis=-1) + 1e-6)

    def unit(x: jax.Array) -> jax.Array:
        return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)

    def init(key: jax.Array) -> TrainState:
        inner_key, phi_key = jax.random.split(key)
        phi = mlp.init(phi_key, (space.observation, *config.hidden, config.features))
        state = extend(inner.init(inner_key), "phi", phi, adam)
        more = {"slow_phi": phi, "goal": jnp.zeros(space.observation + 1)}
        return state.replace(params=state.params | more)

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        draw_key, inner_key = jax.random.split(key)
        goals, slow = batch.extra["goals"], state.params["slow_phi"]
        away = jnp.any(goals != batch.next_observations, axis=-1).astype(jnp.float32)
        reached = closeness(slow, batch.next_observations, goals)
        wanted = control.td_target(-away, 1.0 - away, reached, discount=config.discount)

        def phi_loss(phi: Any) -> tuple[jax.Array, Metrics]:
            here = closeness(phi, batch.observations, goals)
            loss = value.expectile_loss(here, wanted, tau=config.distance_expectile)
            return jnp.mean(loss), {"distance": -jnp.mean(here)}

        state, metrics = descend(state, "phi", adam, phi_loss)
        z = unit(jax.random.normal(draw_key, (len(goals), config.features)))
        pair = batch.observations, batch.next_observations
        before, after = (mlp.apply(slow, s) for s in pair)
        here, ahead = (jnp.concatenate([s, z], axis=-1) for s in pair)
        rewards = jnp.sum((after - before) * z, axis=-1)
        along = batch._replace(observations=here, next_observations=ahead, rewards=rewards)
        state, inner_metrics = inner.update(inner_key, state, along)
        moved = critics.polyak(slow, state.params["phi"], config.polyak)
        # running sums of r s' and r, whose quotient is the goal
        places = jnp.append(batch.next_observations, jnp.ones((len(goals), 1)), axis=1)
        found = jnp.mean(batch.rewards[:, None] * places, axis=0)
        goal = critics.polyak(state.params["goal"], found, 0.01)
        state = state.replace(params=state.params | {"slow_phi": moved, "goal": goal})
        return state, metrics | inner_metrics

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        goal = params["goal"][:-1] / jnp.maximum(params["goal"][-1], 1e-6)
        there, here = mlp.apply(params["phi"], goal), mlp.apply(params["phi"], observation)
        seen = jnp.concatenate([observation, unit(there - here)], axis=-1)
        return inner.best(key, params, seen)

    def prepare(data: Transitions) -> Transitions:
        last = [np.full(e.stop - e.start, e.stop - 1) for e in transitions.episodes(data)]
        return data._replace(extra={"last": np.concatenate(last)})

    def sample(key: jax.Array, data: Transitions, size: int) -> Transitions:
        row_key, far_key, coin_key, any_key = jax.random.split(key, 4)
        count = len(data.rewards)
        rows = jax.random.randint(row_key, (size,), 0, count)
        later = jax.random.randint(far_key, (size,), rows, data.extra["last"][rows] + 1)
        anywhere = jax.random.randint(any_key, (size,), 0, count)
        where = jnp.where(jax.random.uniform(coin_key, (size,)) < config.ahead, later, anywhere)
        batch = jax.tree.map(lambda x: x[rows], data._replace(extra={}))
        return batch._replace(extra={"goals": data.next_observations[where]})

    return Algorithm(init, update, best, best, config.batch_size, prepare, sample)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
