"""Any environment of gymnax, behind the extra `control`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step
from jaxrl.functions import nearest


def make(name: str = "CartPole-v1", **kwargs: Any) -> Environment:
    """gymnax's environment `name`, with flat observations; its time limit becomes the horizon."""
    import gymnax

    if name not in gymnax.registered_envs:
        raise ValueError(
            f"environment gymnax/{name} is unknown; {nearest(name, list(gymnax.registered_envs))}"
        )
    env, parameters = gymnax.make(name, **kwargs)
    horizon = int(parameters.max_steps_in_episode)
    actions = env.action_space(parameters)
    discrete = hasattr(actions, "n")
    sample = jax.eval_shape(lambda key: env.reset_env(key, parameters)[0], jax.random.PRNGKey(0))
    size = int(actions.n) if discrete else int(jnp.prod(jnp.array(actions.shape)))

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        observation, state = env.reset_env(key, parameters)
        return state, jnp.ravel(observation).astype(jnp.float32)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        if not discrete:
            middle, half = (actions.high + actions.low) / 2.0, (actions.high - actions.low) / 2.0
            action = jnp.reshape(middle + half * action, actions.shape)
        # gymnax's own `step` would reset, and no time limit counts as a terminal here
        observation, state, reward, terminal, _ = env.step_env(key, state, action, parameters)
        flat_observation = jnp.ravel(observation).astype(jnp.float32)
        return Step(state, flat_observation, jnp.asarray(reward, jnp.float32), terminal)

    return Environment(f"gymnax/{name}", Space(sample.size, size, discrete), horizon, reset, step)
