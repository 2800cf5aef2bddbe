"""Cart-pole balancing: the dynamics of Gymnasium's CartPole-v1; 1 for each step upright."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step


def make(horizon: int = 500) -> Environment:
    """A pole on a cart that is pushed left (0) or right (1) with 10 N every 20 ms."""

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return state, state

    def step(key: jax.Array, state: jax.Array, action: jax.Array) -> Step:
        _, v, angle, turn = state
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        # pole of 0.1 kg and half-length 0.5 m on a cart of 1 kg
        push = (force + 0.05 * turn**2 * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        state = state + 0.02 * jnp.stack([v, moving, turn, turning])
        fallen = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * jnp.pi / 180)
        return Step(state, state, jnp.ones(()), fallen)

    return Environment("cartpole", Space(4, 2, discrete=True), horizon, reset, step)
