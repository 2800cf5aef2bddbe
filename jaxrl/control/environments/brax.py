"""Any environment of brax, behind the extra `control`."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.control.environment import Environment, Space, Step
from jaxrl.functions import nearest


def make(name: str = "inverted_pendulum", horizon: int = 1000, **kwargs: Any) -> Environment:
    """brax's environment `name` without its own wrappers: no time limit, no automatic reset."""
    from brax import envs

    if name not in envs._envs:
        raise ValueError(f"environment brax/{name} is unknown; {nearest(name, sorted(envs._envs))}")
    env = envs.get_environment(name, **kwargs)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        state = env.reset(key)
        return state, state.obs

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        state = env.step(state, action)
        return Step(state, state.obs, state.reward, state.done > 0)

    space = Space(env.observation_size, env.action_size)
    return Environment(f"brax/{name}", space, horizon, reset, step)
