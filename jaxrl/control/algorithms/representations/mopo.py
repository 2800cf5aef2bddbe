"""MOPO: SAC in short rollouts of a learnt model, where being unsure costs reward.

Left out: data held out to stop the model and to choose its best members, terminations of the task
in a rollout (no modelled step is terminal), and, of COMBO, the log-sum-exp over sampled actions.

Paper: Yu et al. 2020, "MOPO: Model-based Offline Policy Optimization"; with `conservative`, Yu et
al. 2021, "COMBO: Conservative Offline Model-Based Policy Optimization".
Idea: an ensemble learns the dynamics from the data; from states of the data the policy is rolled
out in it for a few steps, and trained on those and real steps. MOPO takes the ensemble's doubt from
the reward; COMBO needs no doubt: it lowers values on modelled steps and raises them on real ones.
Formula: `r - p max_e |std_e(s, a)|` (MOPO); `b (E_model Q - E_data Q)` on the critics (COMBO).
Claim: above model-free offline RL where the task leaves the data behind.
Reading: rollouts are drawn anew for each update, not kept. The model learns nothing from terminal
steps, whose next state is never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics, descend, extend
from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.online import sac
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline
from jaxrl.data.offline.transitions import Transitions
from jaxrl.models.control import critics, dynamics, policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    model_steps: int = 2000
    """Updates of the model, before any of the policy."""
    steps: int = 3000
    members: int = 5
    """Of the model."""
    length: int = 5
    """Steps of a rollout."""
    real: float = 0.25
    """Share of real steps in a batch."""
    penalty: float = 1.0
    """p, on what the ensemble is unsure of."""
    conservative: float = 0.0
    """b, on values of modelled steps."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(space: Space, config: Config) -> tuple[Algorithm, Algorithm]:
    """What learns the model, and what learns from it; both hold the networks of both."""
    adam = optax.adam(config.learning_rate)
    real_rows = round(config.real * config.batch_size)
    starts = (config.batch_size - real_rows) // config.length

    def apart(key: jax.Array, critic: Any, state: TrainState, batch: Batch) -> jax.Array:
        modelled, real = (
            jnp.mean(critics.values(critic, batch[name].observations, batch[name].actions), axis=1)
            for name in ("model", "offline")
        )
        return config.conservative * jnp.sum(modelled - real)

    size = real_rows + starts * config.length
    sac_config = shared(sac.Config, config, members=sac.Config.members, batch_size=size)
    base = sac.make(space, sac_config, critic_term=apart if config.conservative else None)

    def init(key: jax.Array) -> TrainState:
        base_key, model_key = jax.random.split(key)
        sizes = space.observation, space.action, config.hidden, config.members
        return extend(base.init(base_key), "model", dynamics.init(model_key, *sizes), adam)

    def fit(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        moved = rows.next_observations - rows.observations
        outcome = jnp.concatenate([moved, rows.rewards[:, None]], axis=-1)
        goes_on = 1.0 - rows.terminals

        def loss(model: Any) -> tuple[jax.Array, Metrics]:
            losses = dynamics.surprise(model, rows.observations, rows.actions, outcome)
            total = jnp.sum(jnp.where(goes_on > 0, losses, 0.0), axis=1)
            return jnp.sum(total / jnp.maximum(jnp.sum(goes_on), 1.0)), {}

        state, metrics = descend(state, "model", adam, loss)
        return state.replace(step=state.step + 1), metrics

    def rollout(key: jax.Array, params: Any, states: jax.Array) -> tuple[Transitions, jax.Array]:
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

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        model_key, base_key = jax.random.split(key)
        modelled, unsure = rollout(model_key, state.params, batch["starts"].observations)
        both = {"offline": batch["offline"], "model": modelled}
        both = jax.tree.map(lambda x: x[None], both)
        state, metrics = base.update(base_key, state, both)
        return state, {**metrics, "unsure": unsure}

    def sample(key: jax.Array, data: Transitions, size: int) -> Batch:
        real_key, start_key = jax.random.split(key)
        data = data._replace(extra={})
        return {
            "offline": replay.uniform(real_key, data, real_rows),
            "starts": replay.uniform(start_key, data, starts),
        }

    size = real_rows + starts
    first = Algorithm(init, fit, base.act, base.best, 2 * config.batch_size)
    return first, Algorithm(init, update, base.act, base.best, size, sample=sample)


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """The model, then the policy; both offline."""
    model, policy = make(env.space, config)
    return offline(model, steps=config.model_steps), offline(policy, steps=config.steps)
