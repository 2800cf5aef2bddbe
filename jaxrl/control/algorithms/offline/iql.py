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
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment, Space
from jaxrl.control.program import Program, offline_first
from jaxrl.data.offline.transitions import Transitions
from jaxrl.losses import control, value
from jaxrl.models.control import critics, policies
from jaxrl.types import TrainState

DISCRETE = None
"""Either kind of action."""

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
    fit = fit or functools.partial(value.expectile_loss, tau=config.expectile)
    adam, kind = optax.adam(config.learning_rate), {"discrete": space.discrete}

    def bellman(q: jax.Array, ahead: jax.Array, batch: Transitions) -> tuple[jax.Array, Metrics]:
        target = control.td_target(batch.rewards, batch.terminals, ahead, discount=config.discount)
        return value.squared_error(q, target), {}

    def init(key: jax.Array) -> TrainState:
        v_key, q_key, actor_key = jax.random.split(key, 3)
        inputs = space.observation + space.action
        critic = critics.init(q_key, inputs, config.hidden, members=config.members)
        v = critics.init(v_key, space.observation, config.hidden, members=1)
        actor = policies.regression_init(actor_key, space.observation, config.hidden, space.action)
        params = {"value": v, "critic": critic, "target": critic, "actor": actor}
        return fresh(params, dict.fromkeys(("value", "critic", "actor"), adam))

    def update(key: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        rows = mixed(batch)
        actions = policies.features(rows.actions, space.action, **kind)
        q_members = critics.values(state.params["target"], rows.observations, actions)
        q_data = pool(q_members)

        def value_loss(v: Any) -> tuple[jax.Array, Metrics]:
            values = critics.values(v, rows.observations)[0]
            return jnp.mean(fit(values, q_data)), {"v": jnp.mean(values)}

        state, value_metrics = descend(state, "value", adam, value_loss)
        v, v_next = (
            critics.values(state.params["value"], s)[0]
            for s in (rows.observations, rows.next_observations)
        )
        weight = control.advantage_weight(q_data - v, temperature=config.temperature)

        def critic_loss(critic: Any) -> tuple[jax.Array, Metrics]:
            q = critics.values(critic, rows.observations, actions)
            losses, metrics = (regress or bellman)(q, v_next, rows)
            return jnp.sum(jnp.mean(losses, axis=1)), metrics

        def actor_loss(actor: Any) -> tuple[jax.Array, Metrics]:
            logp = policies.regression_log_prob(actor, rows.observations, rows.actions, **kind)
            return -jnp.mean(weight * logp), {"weight": jnp.mean(weight)}

        state, critic_metrics = descend(state, "critic", adam, critic_loss)
        state, actor_metrics = descend(state, "actor", adam, actor_loss)
        moved = critics.polyak(state.params["target"], state.params["critic"], config.polyak)
        state = state.replace(params=state.params | {"target": moved}, step=state.step + 1)
        return state, value_metrics | critic_metrics | actor_metrics

    act, best = (
        of_actor(policy(space.discrete))
        for policy in (policies.regression_act, policies.regression_mode)
    )
    return Algorithm(init, update, act, best, config.batch_size)


def programs(env: Environment, config: Config, fit: Fit | None = None) -> tuple[Program, ...]:
    """Offline, and then online if asked."""
    algorithm = make(env.space, config, fit=fit)
    return offline_first(algorithm, env, steps=config.steps, online_steps=config.online_steps)
