"""A point mass with momentum, to be brought to the origin and held there."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step


def make(dimensions: int = 2, friction: float = 0.1, horizon: int = 50) -> Environment:
    """A mass in the box [-1, 1]^d that actions accelerate; a step's reward is in (0, 1].

    Args:
      dimensions: d.
      friction: share of the speed that a step loses; another one is a simulator that is off.
      horizon: steps.
    """

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        place = jax.random.uniform(key, (dimensions,), minval=-1.0, maxval=1.0)
        state = jnp.concatenate([place, jnp.zeros(dimensions)])
        return state, state

    def step(key: jax.Array, state: jax.Array, action: jax.Array) -> Step:
        place, speed = jnp.split(state, 2)
        speed = (1.0 - friction) * speed + 0.3 * jnp.clip(action, -1.0, 1.0)
        wished = place + 0.1 * speed
        place = jnp.clip(wished, -1.0, 1.0)
        speed = jnp.where(wished == place, speed, 0.0)
        state = jnp.concatenate([place, speed])
        reward = jnp.exp(-4.0 * jnp.sum(place**2)) / (1.0 + 0.1 * jnp.sum(action**2))
        return Step(state, state, reward, jnp.asarray(False))

    return Environment("point_mass", Space(2 * dimensions, dimensions), horizon, reset, step)
