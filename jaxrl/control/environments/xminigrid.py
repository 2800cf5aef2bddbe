"""Any environment of XLand-MiniGrid (Nikulin et al. 2023), where its package is installed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step
from jaxrl.functions import nearest


def make(name: str = "MiniGrid-Empty-5x5", **kwargs: Any) -> Environment:
    """xminigrid's environment `name`; its time limit becomes the horizon.

    What is seen are the kind and the colour of the tiles in view, as one-hot vectors side by side.

    Args:
      name: as registered; `XLand-MiniGrid` ones have the package's default rules.
      **kwargs: of its parameters, such as `view_size` and `max_steps`.
    """
    import xminigrid
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES

    if name not in xminigrid.registered_environments():
        near = nearest(name, sorted(xminigrid.registered_environments()))
        raise ValueError(f"environment xminigrid/{name} is unknown; {near}")
    env, parameters = xminigrid.make(name, **kwargs)

    def read(observation: jax.Array) -> jax.Array:
        kinds, colours = observation[..., 0], observation[..., 1]
        parts = jax.nn.one_hot(kinds, NUM_TILES), jax.nn.one_hot(colours, NUM_COLORS)
        return jnp.concatenate(parts, axis=-1).ravel()

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        moment = env.reset(parameters, key)
        return moment, read(moment.observation)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        moment = env.step(parameters, state, action)
        return Step(moment, read(moment.observation), moment.reward, moment.discount == 0.0)

    size = jax.eval_shape(reset, jax.random.PRNGKey(0))[1].size
    space = Space(size, env.num_actions(parameters), discrete=True)
    return Environment(f"xminigrid/{name}", space, int(parameters.max_steps), reset, step)
