"""HILP: a space where distance is the time between states; a policy for each direction in it.

Paper: Park et al. 2024, "Foundation Policies with Hilbert Representations".
Idea: an embedding is learnt from any data so that distances are temporal, by goal-conditioned value
learning with hindsight goals; a policy of a latent z then moves along z. A goal is reached with no
further training by pointing z at it. The rewards of the data serve to find the goal alone.
Formula: `phi: expectile of -1[s != g] + gamma 1[s != g] V(s', g) - V(s, g)`, `V(s, g) = -|phi(s) -
phi(g)|`;
IQL of `r = (phi(s') - phi(s)) . z`, `|z| = 1`; acts with `z ~ phi(g) - phi(s)`.
Claim: zero-shot goals and rewards, often above methods made for each.
Reading: the goal of a task is the mean of the next states of its data, weighted by how far their
rewards lie above the least; a terminal step, whose next state is never read, counts with its own
state, and nothing else is learnt from it. One phi where the authors take the least of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.offline import iql
from jaxrl.control.batches import Batch, mixed, with_own_terminals
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control, value
from jaxrl.models.control import critics, mlp
from jaxrl.types import TrainState


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


class Prepared(NamedTuple):
    """The data set, and where goals and steps are drawn from."""

    data: Transitions
    last: np.ndarray
    """[N] int: the last row of each row's trajectory."""
    goes_on: np.ndarray
    """int: the rows that are no terminals."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> Algorithm:
    """The algorithm for observations and actions of these sizes."""
    adam = optax.adam(config.learning_rate)
    iql_config = shared(iql.Config, config)
    inner = iql.make(space._replace(observation=space.observation + config.features), iql_config)

    def closeness(phi: Any, states: jax.Array, goals: jax.Array) -> jax.Array:
        apart = mlp.apply(phi, states) - mlp.apply(phi, goals)
        return -jnp.sqrt(jnp.sum(jnp.square(apart), axis=-1) + 1e-6)

    def unit(x: jax.Array) -> jax.Array:
        return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)

    def init(key: jax.Array) -> TrainState:
        inner_key, phi_key = jax.random.split(key)
        phi = mlp.init(phi_key, (space.observation, *config.hidden, config.features))
        state = extend(inner.init(inner_key), "phi", phi, adam)
        extra_params = {"slow_phi": phi, "goal": jnp.zeros(space.observation)}
        return state.replace(params=state.params | extra_params)

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        draw_key, inner_key = jax.random.split(key)
        rows, slow = mixed(batch), state.params["slow_phi"]
        goals = rows.extra["goals"]
        away = (jnp.linalg.norm(goals - rows.observations, axis=-1) > 1e-6).astype(jnp.float32)
        reached = closeness(slow, rows.next_observations, goals)
        target = control.td_target(-away, 1.0 - away, reached, discount=config.discount)

        def phi_loss(phi: Any) -> tuple[jax.Array, Metrics]:
            values = closeness(phi, rows.observations, goals)
            loss = value.expectile_loss(values, target, tau=config.distance_expectile)
            return jnp.mean(loss), {"distance": -jnp.mean(values)}

        state, metrics = descend(state, "phi", adam, phi_loss)
        z = unit(jax.random.normal(draw_key, (len(goals), config.features)))
        pair = rows.observations, rows.next_observations
        before, after = (mlp.apply(slow, s) for s in pair)
        observations, next_observations = (jnp.concatenate([s, z], axis=-1) for s in pair)
        rewards = jnp.sum((after - before) * z, axis=-1)
        along = rows._replace(
            observations=observations, next_observations=next_observations, rewards=rewards
        )
        state, inner_metrics = inner.update(inner_key, state, {"offline": along})
        moved = critics.polyak(slow, state.params["phi"], config.polyak)
        state = state.replace(params=state.params | {"slow_phi": moved})
        return state, metrics | inner_metrics

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        goal_phi, phi = (mlp.apply(params["phi"], s) for s in (params["goal"], observation))
        inputs = jnp.concatenate([observation, unit(goal_phi - phi)], axis=-1)
        return inner.best(key, params, inputs)

    def prepare(data: Transitions) -> Prepared:
        if np.ptp(data.rewards) == 0:
            raise ValueError(
                f"all rewards of the data are {data.rewards[0]}, and hilp takes its goal from "
                "where they are higher; choose data that reach it, or another algorithm"
            )
        last = [np.full(e.stop - e.start, e.stop - 1) for e in transitions.episodes(data)]
        goes_on = np.flatnonzero(data.terminals == 0)
        return Prepared(data._replace(extra={}), np.concatenate(last), goes_on)

    def begin(state: TrainState, prepared: Prepared) -> TrainState:
        data = with_own_terminals(prepared.data)
        weights = data.rewards - jnp.min(data.rewards)
        goal = jnp.sum(weights[:, None] * data.next_observations, axis=0) / jnp.sum(weights)
        return state.replace(params=state.params | {"goal": goal})

    def sample(key: jax.Array, prepared: Prepared, size: int) -> Batch:
        row_key, far_key, coin_key, any_key = jax.random.split(key, 4)
        data, count = prepared.data, len(prepared.last)
        rows = replay.uniform(row_key, prepared.goes_on, size)
        later = jax.random.randint(far_key, (size,), rows, prepared.last[rows] + 1)
        anywhere = jax.random.randint(any_key, (size,), 0, count)
        where = jnp.where(jax.random.uniform(coin_key, (size,)) < config.ahead, later, anywhere)
        batch = jax.tree.map(lambda x: x[rows], data)
        return {"offline": batch._replace(extra={"goals": data.observations[where]})}

    hooks = {"prepare": prepare, "begin": begin, "sample": sample}
    return Algorithm(init, update, best, best, config.batch_size, **hooks)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline."""
    return (offline(make(env.space, config), steps=config.steps),)
