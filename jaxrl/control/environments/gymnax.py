"""Any environment of gymnax, behind the extra `control`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Space, Step
from jaxrl.functions import nearest


def make(name: str = "CartPole-v1", pictures: bool = False, **kwargs: Any) -> Environment:
    """gymnax's environment `name`, with flat observations; its time limit becomes the horizon.

    Args:
      name: as gymnax has it.
      pictures: observations [H, W, C] in 0 to 1, as MinAtar's, are pictures of 0 to 255, which
        networks see through convolutions; otherwise they are numbers.
      **kwargs: of `gymnax.make`.

    Raises:
      ValueError: no such environment, or one whose observations are no pictures.
    """
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
    shape = _picture(name, env.observation_space(parameters)) if pictures else ()
    size = int(actions.n) if discrete else int(jnp.prod(jnp.array(actions.shape)))

    def flat(observation: jax.Array) -> jax.Array:
        row = jnp.ravel(observation).astype(jnp.float32)
        return jnp.round(255.0 * row).astype(jnp.uint8) if pictures else row

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        observation, state = env.reset_env(key, parameters)
        return state, flat(observation)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        if not discrete:
            middle, half = (actions.high + actions.low) / 2.0, (actions.high - actions.low) / 2.0
            action = jnp.reshape(middle + half * action, actions.shape)
        # gymnax's own `step` would reset, and no time limit counts as a terminal here
        observation, state, reward, terminal, _ = env.step_env(key, state, action, parameters)
        return Step(state, flat(observation), jnp.asarray(reward, jnp.float32), terminal)

    space = Space(sample.size, size, discrete, shape)
    return Environment(f"gymnax/{name}", space, horizon, reset, step)


def _picture(name: str, observations: Any) -> tuple[int, ...]:
    """H, W and C of the space `observations` of gymnax."""
    shape = tuple(int(side) for side in getattr(observations, "shape", ()))
    bounds = [jnp.min(getattr(observations, "low", -1)), jnp.max(getattr(observations, "high", 2))]
    if len(shape) != 3 or bounds[0] < 0 or bounds[1] > 1:
        raise ValueError(
            f"env_args.pictures=True: the observations of gymnax/{name}, of the shape "
            f"{list(shape)}, are not pictures [H, W, C] in 0 to 1; leave pictures out, or choose "
            "one of MinAtar"
        )
    return shape
