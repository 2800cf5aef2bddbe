"""IQL: values the best action that the data supports without ever asking for one outside it.

Paper: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning".
Idea: an upper expectile of Q over the data's actions stands for their maximum; the policy regresses
on the data's actions, weighted by how much better than that value they are.
Formula: `V: |tau - 1[Q < V]| (Q - V)^2`, `Q: (r + gamma V(s') - Q)^2`,
`pi: -exp(beta (Q - V)) log pi(a | s)`.
Claim: above BC and one-step methods wherever trajectories must be stitched; fine-tunes online.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.control.algorithm import Algorithm, Metrics, descend, fresh, of_actor
from jaxrl.control.batches import Batch, augmented, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline_first
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control, value
from jaxrl.models.control import critics, encoders, policies
from jaxrl.types import TrainState

DISCRETE = None
"""Either kind of action."""
PICTURES = True
"""Observations may be pictures."""

Fit = Callable[[jax.Array, jax.Array], jax.Array]
"""V, Q of the data -> the loss of V."""
Pool = Callable[[jax.Array], jax.Array]
"""The members' Q [E, B] -> the one [B] that stands for all."""
Regress = Callable[[jax.Array, jax.Array, Transitions], tuple[jax.Array, Metrics]]
"""The members' Q [E, B], V [B] of the next states, rows -> their losses [E, B], metrics."""


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
    expectile: float = 0.8
    temperature: float = 0.3
    """Of the advantage weights; the paper's 1 / beta."""
    members: int = 2
    """Critics."""
    latent: int = 50
    """Features of a picture; actor and critic read the same, which the critic's loss trains."""
    shift: int = 0
    """Pixels by which pictures are moved at random in updates; DrQ and SERL: 4."""


def config() -> Config:
    """For small tasks: small networks, and the learning rate and batch that suit them."""
    return Config()


def make(
    space: Space,
    config: Config,
    *,
    fit: Fit | None = None,
    pool: Pool = value.ensemble_target,
    regress: Regress | None = None,
) -> Algorithm:
    """The algorithm for observations and actions of these sizes.

    Args:
      space: sizes.
      config: hyperparameters.
      fit: how V relates to Q; the expectile when omitted.
      pool: the least of the members when omitted.
      regress: what Q is fitted to; squares of the Bellman error when omitted.
    """
    fit, shape = fit or functools.partial(value.expectile_loss, tau=config.expectile), space.shape
    adam, kind = optax.adam(config.learning_rate), {"discrete": space.discrete}

    def bellman(q: jax.Array, ahead: jax.Array, batch: Transitions) -> tuple[jax.Array, Metrics]:
        target = control.td_target(batch.rewards, batch.terminals, ahead, discount=config.discount)
        return value.squared_error(q, target), {}

    def init(key: jax.Array) -> TrainState:
        v_key, q_key, actor_key = jax.random.split(key, 3)
        sizes = {"members": config.members, "action": space.action, "latent": config.latent}
        critic = encoders.critic(q_key, space.observation, shape, config.hidden, **sizes)
        width = config.latent if shape else space.observation
        v = critics.init(v_key, width, config.hidden, members=1)
        actor = policies.regression_init(actor_key, width, config.hidden, space.action)
        params = {"value": v, "critic": critic, "target": critic, "actor": actor}
        return fresh(params, dict.fromkeys(("value", "critic", "actor"), adam))

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = augmented(key, mixed(batch), shape, config.shift)
        actions = policies.features(rows.actions, space.action, **kind)
        q_data = pool(encoders.values(state.params["target"], rows.observations, actions, shape))
        states, next_states = (
            encoders.see(state.params["critic"], x, shape)
            for x in (rows.observations, rows.next_observations)
        )

        def value_loss(v: Any) -> tuple[jax.Array, Metrics]:
            values = critics.values(v, states)[0]
            return jnp.mean(fit(values, q_data)), {"v": jnp.mean(values)}

        state, value_metrics = descend(state, "value", adam, value_loss)
        v, v_next = (critics.values(state.params["value"], s)[0] for s in (states, next_states))
        weight = control.advantage_weight(q_data - v, temperature=config.temperature)

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = encoders.values(critic, rows.observations, actions, shape)
            losses, metrics = (regress or bellman)(q, v_next, rows)
            return jnp.sum(jnp.mean(losses, axis=1)), metrics

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            logp = policies.regression_log_prob(actor, states, rows.actions, **kind)
            return -jnp.mean(weight * logp), {"weight": jnp.mean(weight)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(state.params["target"], state.params["critic"], config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, value_metrics | critic_metrics | actor_metrics

    act, best = (
        of_actor(policy(space.discrete), shape)
        for policy in (policies.regression_act, policies.regression_mode)
    )
    return Algorithm(init, update, act, best, config.batch_size)


def programs(env: Environment, config: Config, fit: Fit | None = None) -> tuple[Program, ...]:
    """Offline, and then online if asked."""
    algorithm = make(env.space, config, fit=fit)
    return offline_first(algorithm, env, steps=config.steps, online_steps=config.online_steps)
