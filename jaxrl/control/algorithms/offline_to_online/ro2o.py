"""RO2O: one loss from offline to online; pessimism by an ensemble, smooth in the state.

Paper: Wen et al. 2023, "Towards Robust Offline-to-Online Reinforcement Learning via Uncertainty and
Smoothness".
Idea: what hurts at the switch to online data is a policy and values that jump between states; both
are kept smooth around the data, values are lowered where the ensemble disagrees, and online
training then continues with nothing changed.
Formula: SAC's with `min` over N, and `b_1 max_s^ (Q(s, a) - Q(s^, a))^2`,
`b_2 max_s^ KL(pi(s) | pi(s^))`, `b_3 (Q(s^, a^) - sg[Q(s^, a^) - u std_i Q_i(s^, a^)])^2 / 2`,
where `s^` is in a box around s and `a^ ~ pi(s^)`; the last recalled after RORL (Yang et al. 2022).
Claim: no fall of the return at the switch, and faster improvement after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.algorithms import shared
from jaxrl.control.algorithms.online import sac
from jaxrl.control.batches import Batch, mixed
from jaxrl.control.environment import Environment
from jaxrl.control.program import Program, offline_first
from jaxrl.losses import control, value
from jaxrl.models.control import critics, policies
from jaxrl.types import TrainState


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the rest are SAC's."""

    steps: int = 3000
    online_steps: int = 0
    """Steps of the environment after the offline phase, with the data kept in half of a batch."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.99
    polyak: float = 0.005
    batch_size: int = 128
    members: int = 10
    radius: float = 0.02
    """Of the box of perturbed states, in units of the observation."""
    samples: int = 4
    """States drawn from it."""
    smooth_values: float = 0.1
    """b_1."""
    smooth_policy: float = 0.1
    """b_2."""
    outside: float = 0.1
    """b_3."""
    pessimism: float = 1.0
    """u."""


def config() -> Config:
    """Ten critics."""
    return Config()


def programs(env: Environment, config: Config) -> tuple[Program, ...]:
    """Offline, and then online if asked, by the same losses."""

    def near(key: jax.Array, states: jax.Array) -> jax.Array:
        shape = (config.samples, *states.shape)
        return states + config.radius * jax.random.uniform(key, shape, minval=-1.0)

    def steady_critic(key: jax.Array, critic: Any, state: TrainState, batch: Batch) -> jax.Array:
        rows = mixed(batch)
        state_key, act_key = jax.random.split(key)
        moved = near(state_key, rows.observations)
        repeated = jnp.broadcast_to(rows.actions, (config.samples, *rows.actions.shape))
        q_data = critics.values(critic, rows.observations, rows.actions)
        q_moved = critics.values(critic, moved, repeated)
        rough = control.worst_change(q_data, jnp.moveaxis(q_moved, 0, 1))
        actions = policies.squashed_act(act_key, state.params["actor"], moved)
        unseen = critics.values(critic, moved, actions)
        lowered = unseen - config.pessimism * jnp.std(unseen, axis=0)
        doubt = value.squared_error(unseen, lowered)
        total = config.smooth_values * jnp.mean(rough) + config.outside * jnp.mean(doubt)
        return config.members * total

    def steady_actor(key: jax.Array, actor: Any, state: TrainState, batch: Batch) -> jax.Array:
        states = mixed(batch).observations
        distribution = policies.squashed(actor, states)
        near_distribution = policies.squashed(actor, near(key, states))
        return config.smooth_policy * jnp.mean(
            jnp.max(policies.gaussian_kl(*distribution, *near_distribution), axis=0)
        )

    sac_config = shared(sac.Config, config, subset=config.members)
    algorithm = sac.make(env.space, sac_config, critic_term=steady_critic, actor_term=steady_actor)
    return offline_first(algorithm, env, steps=config.steps, online_steps=config.online_steps)
