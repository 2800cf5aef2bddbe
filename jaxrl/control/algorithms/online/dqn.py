"""DQN: the value of every choice by bootstrapping from a target network; scalar or categorical.

Paper: Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et
al. 2016 (double); Farebrother et al. 2024, "Stop Regressing" (HL-Gauss).
Idea: replay decorrelates the data and a slow target steadies the bootstrap; with atoms the value is
a distribution learnt by classification: C51's projected return, or HL-Gauss's blurred target.
Formula: `y = r + gamma Q_target(s', argmax_a Q(s', a))`; loss Huber, or cross-entropy to the
encoding of y.
Claim: human level on most of Atari; classification scales with the network where regression fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rlax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space, random_action
from jaxrl.control.program import Program, offline, online
from jaxrl.losses import control, value
from jaxrl.models.control import critics, encoders
from jaxrl.types import TrainState

DISCRETE = True
PICTURES = True
"""Observations may be pictures, which an encoder precedes the critic for."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters; C51 and HL-Gauss are other values of them."""

    critic: Literal["scalar", "c51", "hl_gauss"] = "scalar"
    steps: int = 20_000
    offline_steps: int = 0
    """Updates on a data set; above 0, none but they are made."""
    conservative: float = 0.0
    """Weight of CQL's term, for data."""
    worlds: int = 1
    every: int = 2
    """Steps of each world before updates."""
    updates: int = 1
    warmup: int = 1000
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 5e-4
    batch_size: int = 128
    discount: float = 0.99
    polyak: float = 0.01
    target_every: int = 1
    """Updates between two moves of the target, by `polyak`; 1 of it copies the critic."""
    epsilon: float = 0.05
    """Of the exploration, once it has fallen from 1."""
    epsilon_updates: int = 2000
    """Over which it falls."""
    atoms: int = 51
    low: float = 0.0
    high: float = 100.0
    """Values of the first and last atom."""


def config() -> Config:
    """Double DQN with small networks."""
    return Config()


def make(space: Space, config: Config, network: encoders.Network | None = None) -> Algorithm:
    """The algorithm for observations and choices of these sizes.

    Without a network it is a perceptron, of the features of an encoder where these are pictures.
    """
    adam = optax.adam(config.learning_rate)
    atoms = 1 if config.critic == "scalar" else config.atoms
    with jax.ensure_compile_time_eval():  # a constant, also where this is called within a trace
        centers = np.asarray(jnp.linspace(config.low, config.high, config.atoms))

    net = network or encoders.network(
        space.observation, space.shape, config.hidden, space.action * atoms
    )

    def outputs(critic: Any, observations: jax.Array) -> jax.Array:
        """[..., choices, atoms]."""
        out = net.outputs(critic, observations)
        return out.reshape(*out.shape[:-1], space.action, atoms)

    def values(out: jax.Array) -> jax.Array:
        """[..., choices]."""
        return out[..., 0] if atoms == 1 else value.categorical_value(out, centers)

    def init(key: jax.Array) -> TrainState:
        critic = net.init(key)
        epsilon = jnp.ones(())
        return fresh({"critic": critic, "target": critic, "epsilon": epsilon}, {"critic": adam})

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        at = jnp.arange(len(rows.rewards))
        chosen = jnp.argmax(values(outputs(state.params["critic"], rows.next_observations)), -1)
        ahead = outputs(state.params["target"], rows.next_observations)[at, chosen]
        discounts = config.discount * (1.0 - rows.terminals)
        v_next = values(ahead[:, None])[:, 0]
        target = control.td_target(rows.rewards, rows.terminals, v_next, discount=config.discount)
        if config.critic == "c51":
            places = rows.rewards[:, None] + discounts[:, None] * centers
            project = jax.vmap(rlax.categorical_l2_project, (0, 0, None))
            encoded = project(places, jax.nn.softmax(ahead), centers)
        elif config.critic == "hl_gauss":
            encoded = value.hl_gauss(target, centers)

        def loss(critic: Any) -> tuple[jax.Array, Metrics]:
            every = outputs(critic, rows.observations)
            out = every[at, rows.actions]
            low = 0.0
            if config.conservative:
                low = config.conservative * jnp.mean(value.cql_term(values(every), rows.actions))
            if atoms == 1:
                error = control.huber(out[:, 0], target)
                return jnp.mean(error) + low, {"q": jnp.mean(out)}
            error = value.categorical_loss(out, encoded)
            return jnp.mean(error) + low, {"q": jnp.mean(target)}

        state, metrics = descend(state, "critic", adam, loss)
        rate = config.polyak * ((state.step + 1) % config.target_every == 0)
        moved = critics.polyak(state.params["target"], state.params["critic"], rate)
        part = jnp.minimum((state.step + 1) / config.epsilon_updates, 1.0)
        epsilon = 1.0 + part * (config.epsilon - 1.0)
        params = state.params | {"target": moved, "epsilon": epsilon}
        return state.replace(params=params, step=state.step + 1), metrics

    def best(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        return jnp.argmax(values(outputs(params["critic"], observation)), axis=-1)

    def act(key: jax.Array, params: Any, observation: jax.Array) -> jax.Array:
        coin, choice = jax.random.split(key)
        explore = jax.random.uniform(coin) < params["epsilon"]
        greedy = best(key, params, observation)
        return jnp.where(explore, random_action(choice, space), greedy)

    return Algorithm(init, update, act, best, config.batch_size)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Online, from nothing, or on data alone."""
    names = "steps", "worlds", "every", "updates", "warmup"
    settings = {name: getattr(config, name) for name in names}
    if config.offline_steps:
        return (offline(make(env.space, config), steps=config.offline_steps),)
    return (online(make(env.space, config), env, **settings),)
