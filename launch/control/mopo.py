"""MOPO: SAC in short dreams of a learnt model, where being unsure costs reward.

Paper: Yu et al. 2020, "MOPO: Model-based Offline Policy Optimization"; with `conservative`, Yu et
al. 2021, "COMBO: Conservative Offline Model-Based Policy Optimization".
Idea: an ensemble learns the dynamics from the data; from states of the data the policy is rolled
out in it for a few steps, and trained on those and real steps. MOPO takes the ensemble's doubt from
the reward; COMBO needs no doubt: it lowers values on dreamt steps and raises them on real ones.
Formula: `r - p max_e |std_e(s, a)|` (MOPO); `b (E_dream Q - E_data Q)` on the critics (COMBO).
Claim: above model-free offline RL where the task leaves the data behind.
Reading: dreams are drawn anew for each update, not kept; a dreamt step is never terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from data.offline.transitions import Transitions
from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, join, offline
from jaxrl.types import TrainState
from launch.control import sac
from models.control import critics, dynamics, policies


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    model_steps: int = 2000
    """Updates of the model, before any of the policy."""
    steps: int = 3000
    members: int = 5
    """Of the model."""
    length: int = 5
    """Steps of a dream."""
    real: float = 0.25
    """Share of real steps in a batch."""
    penalty: float = 1.0
    """p, on what the ensemble is unsure of."""
    conservative: float = 0.0
    """b, on values of dreamt steps."""
    hidden: tuple[int, ...] = (64, 64)
    batch_size: int = 128


def config() -> Config:
    """The paper's, with small networks."""
    return Config()


def make(space: Space, config: Config) -> tuple[Algorithm, Algorithm]:
    """What learns the model, and what learns from it; both hold the networks of both."""
    adam = optax.adam(1e-3)
    kept = round(config.real * config.batch_size)
    starts = (config.batch_size - kept) // config.length

    def apart(key: jax.Array, critic: Any, state: TrainState, batch: Transitions) -> jax.Array:
        q = critics.values(critic, batch.observations, batch.actions)
        gap = jnp.mean(q[:, kept:], axis=1) - jnp.mean(q[:, :kept], axis=1)
        return config.conservative * jnp.sum(gap)

    own = sac.Config(hidden=config.hidden, batch_size=kept + starts * config.length)
    base = sac.make(space, own, critic_term=apart if config.conservative else None)

    def init(key: jax.Array) -> TrainState:
        base_key, model_key = jax.random.split(key)
        sizes = space.observation, space.action, config.hidden, config.members
        return extend(base.init(base_key), "model", dynamics.init(model_key, *sizes), adam)

    def fit(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        moved = batch.next_observations - batch.observations
        outcome = jnp.concatenate([moved, batch.rewards[:, None]], axis=-1)

        def loss(model: Any) -> tuple[jax.Array, Metrics]:
            each = dynamics.surprise(model, batch.observations, batch.actions, outcome)
            return jnp.sum(jnp.mean(each, axis=1)), {}

        state, metrics = descend(state, "model", adam, loss)
        return state.replace(step=state.step + 1), metrics

    def dream(key: jax.Array, params: Any, states: jax.Array) -> tuple[Transitions, jax.Array]:
        """Steps [T * B, ...] from `states` [B, O], and the mean doubt."""

        def step(states: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple]:
            act_key, model_key = jax.random.split(key)
            actions = policies.squashed_act(act_key, params["actor"], states)
            ahead, rewards, unsure = dynamics.imagine(model_key, params["model"], states, actions)
            none = jnp.zeros(len(states))
            rewards = rewards - config.penalty * unsure
            return ahead, (Transitions(states, actions, rewards, ahead, none, none), unsure)

        _, (steps, unsure) = jax.lax.scan(step, states, jax.random.split(key, config.length))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps), jnp.mean(unsure)

    def update(key: jax.Array, state: TrainState, batch: Transitions) -> tuple[TrainState, Metrics]:
        dream_key, base_key = jax.random.split(key)
        real = jax.tree.map(lambda x: x[:kept], batch)
        states = batch.observations[kept : kept + starts]
        dreamt, unsure = dream(dream_key, state.params, states)
        state, metrics = base.update(base_key, state, join(real, dreamt))
        return state, {**metrics, "unsure": unsure}

    second = base._replace(init=init, update=update, batch_size=kept + starts)
    return second._replace(update=fit, batch_size=2 * config.batch_size), second


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """The model, then the policy; both offline."""
    model, policy = make(env.space, config)
    return offline(model, steps=config.model_steps), offline(policy, steps=config.steps)
