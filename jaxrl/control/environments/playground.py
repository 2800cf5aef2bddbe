"""Any environment of MuJoCo Playground (Zakka et al. 2025), where its package is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step
from jaxrl.functions import nearest


def make(name: str = "CartpoleBalance", impl: str = "jax", **kwargs: Any) -> Environment:
    """Playground's environment `name` without its wrappers; its episode length is the horizon.

    Of several observations the policy's, `state`, is read. An action is held for as many steps as
    the environment's `action_repeat`, and is paid for all.

    Args:
      name: as registered.
      impl: of the physics, `jax` or `warp`.
      **kwargs: of the environment's config; parts of a part by a dot.

    Raises:
      ValueError: no such environment, or a parameter that its config does not have.
    """
    from mujoco_playground import registry

    if name not in registry.ALL_ENVS:
        near = nearest(name, sorted(registry.ALL_ENVS))
        raise ValueError(f"environment playground/{name} is unknown; {near}")
    config = registry.get_default_config(name)
    try:
        env = registry.load(name, config=config, config_overrides={"impl": impl, **kwargs})
    except KeyError as error:
        reason = str(error.args[0]).partition(". ")[0]  # the whole config follows
        raise ValueError(
            f"environment playground/{name} with {kwargs}: {reason}; "
            f"choose parameters that its config has: {', '.join(config)}"
        ) from error
    repeat = int(config.get("action_repeat", 1))

    def read(state: Any) -> jax.Array:
        observation = state.obs
        return observation["state"] if isinstance(observation, Mapping) else observation

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        state = env.reset(key)
        return state, read(state)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        def hold(state: Any, _: None) -> tuple[Any, jax.Array]:
            state = env.step(state, action)
            return state, state.reward

        state, rewards = jax.lax.scan(hold, state, None, repeat)
        return Step(state, read(state), jnp.sum(rewards), state.done > 0)

    size = jax.eval_shape(reset, jax.random.PRNGKey(0))[1].shape[-1]
    horizon = -(-int(config.episode_length) // repeat)
    return Environment(f"playground/{name}", Space(size, env.action_size), horizon, reset, step)
