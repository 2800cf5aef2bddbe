"""Pendulum swing-up: the dynamics and reward of Gymnasium's Pendulum-v1, torque in [-1, 1]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step


def make(gravity: float = 10.0, horizon: int = 200) -> Environment:
    """A rod hanging from a joint, to be swung up and held; the best reward of a step is 0.

    Args:
      gravity: m/s^2; another one makes a simulator that is off (H2O).
      horizon: steps of 50 ms.
    """

    def observe(state: jax.Array) -> jax.Array:
        angle, speed = state
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        high = jnp.array([jnp.pi, 1.0])
        state = jax.random.uniform(key, (2,), minval=-high, maxval=high)
        return state, observe(state)

    def step(key: jax.Array, state: jax.Array, action: jax.Array) -> Step:
        angle, speed = state
        torque = 2.0 * jnp.clip(action[0], -1.0, 1.0)
        off = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(off**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = speed + (1.5 * gravity * jnp.sin(angle) + 3.0 * torque) * 0.05
        speed = jnp.clip(speed, -8.0, 8.0)
        state = jnp.stack([angle + 0.05 * speed, speed])
        return Step(state, observe(state), reward, jnp.asarray(False))

    return Environment("pendulum", Space(3, 1), horizon, reset, step)
