"""A family of tasks: a point mass with a new goal in each episode; only the rewards reveal it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step


def make(shown: bool = False, friction: float = 0.1, horizon: int = 50) -> Environment:
    """A mass that starts near the origin of the box [-1, 1]^2, its goal on a circle of radius 0.8.

    Args:
      shown: put the goal behind what is seen, for policies that gather data.
      friction: share of the speed that a step loses.
      horizon: steps.
    """

    def observe(state: jax.Array) -> jax.Array:
        return state if shown else state[:4]

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        where, which = jax.random.split(key)
        place = jax.random.uniform(where, (2,), minval=-0.1, maxval=0.1)
        angle = jax.random.uniform(which, maxval=2.0 * jnp.pi)
        goal = 0.8 * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        state = jnp.concatenate([place, jnp.zeros(2), goal])
        return state, observe(state)

    def step(key: jax.Array, state: jax.Array, action: jax.Array) -> Step:
        place, speed, goal = jnp.split(state, 3)
        speed = (1.0 - friction) * speed + 0.3 * jnp.clip(action, -1.0, 1.0)
        wished = place + 0.1 * speed
        place = jnp.clip(wished, -1.0, 1.0)
        speed = jnp.where(wished == place, speed, 0.0)
        state = jnp.concatenate([place, speed, goal])
        reward = jnp.exp(-jnp.sum(jnp.square(place - goal)))
        return Step(state, observe(state), reward, jnp.asarray(False))

    return Environment("point_goals", Space(6 if shown else 4, 2), horizon, reset, step)
