"""Environments made harder, or seen otherwise: delay, disturbance, constraint, noise, history.

Delay, disturbance and constraint are those of NeoRL-2 (Gao et al. 2025): near real tasks have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.control.environment import Environment, Step


def clipped(env: Environment) -> Environment:
    """Continuous actions outside of [-1, 1]^A are taken at its edge."""

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        return env.step(key, state, jnp.clip(action, -1.0, 1.0))

    return env if env.space.discrete else env._replace(step=step)


def delay(env: Environment, steps: int) -> Environment:
    """Actions take effect `steps` steps late; until the first does, the action is 0."""
    shape = () if env.space.discrete else (env.space.action,)
    kind = jnp.int32 if env.space.discrete else jnp.float32

    def reset(key: jax.Array) -> tuple[Any, Any]:
        state, observation = env.reset(key)
        return (state, jnp.zeros((steps, *shape), kind)), observation

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        inner, queue = state
        queue = jnp.concatenate([queue, jnp.asarray(action, kind)[None]])
        out = env.step(key, inner, queue[0])
        return out._replace(state=(out.state, queue[1:]))

    return env._replace(name=f"{env.name}/delay{steps}", reset=reset, step=step)


def disturbance(env: Environment, scale: float, *, memory: float = 0.9) -> Environment:
    """A wind that drifts by itself is added to every action.

    Formula: `w' = memory w + sqrt(1 - memory^2) scale n`, `n ~ N(0, 1)`; the action is `a + w'`.
    """

    def reset(key: jax.Array) -> tuple[Any, Any]:
        state, observation = env.reset(key)
        wind = scale * jax.random.normal(jax.random.fold_in(key, 1), (env.space.action,))
        return (state, wind), observation

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        inner, wind = state
        gust_key, step_key = jax.random.split(key)
        gust = scale * (1.0 - memory**2) ** 0.5 * jax.random.normal(gust_key, wind.shape)
        wind = memory * wind + gust
        out = env.step(step_key, inner, jnp.clip(action + wind, -1.0, 1.0))
        return out._replace(state=(out.state, wind))

    return env._replace(name=f"{env.name}/wind", reset=reset, step=step)


def constraint(
    env: Environment, cost: Callable[[Any, jax.Array], jax.Array], *, fatal: bool = False
) -> Environment:
    """Counts `cost(observation, action)` of the step's outcome; a positive one may end the episode.

    Args:
      env: the task.
      cost: of the observation after the step and the action.
      fatal: whether a positive cost is a terminal.
    """

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        out = env.step(key, state, action)
        price = jnp.asarray(cost(out.observation, action), jnp.float32)
        over = jnp.asarray(out.terminal, bool) | (fatal & (price > 0))
        return out._replace(cost=out.cost + price, terminal=over)

    return env._replace(name=f"{env.name}/constraint", step=step)


def observation_noise(env: Environment, scale: float) -> Environment:
    """Normal noise of standard deviation `scale` on what is seen; the state stays exact."""

    def blur(key: jax.Array, observation: jax.Array) -> jax.Array:
        return observation + scale * jax.random.normal(key, observation.shape)

    def reset(key: jax.Array) -> tuple[Any, Any]:
        state, observation = env.reset(key)
        return state, blur(jax.random.fold_in(key, 1), observation)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        noise_key, step_key = jax.random.split(key)
        out = env.step(step_key, state, action)
        return out._replace(observation=blur(noise_key, out.observation))

    return env._replace(name=f"{env.name}/noise", reset=reset, step=step)


class History(NamedTuple):
    """The last K moments, oldest first; what was before the episode is 0 and not valid."""

    observations: jax.Array
    """[K, O], the present one last."""
    actions: jax.Array
    """[K, A], the one that followed each observation; the present one's is 0."""
    returns_to_go: jax.Array
    """[K]: of the target, less the rewards so far."""
    clock: jax.Array
    """[K] int32: the step of each moment; -1 where it is not valid."""


def history(env: Environment, length: int, *, target: float = 0.0) -> Environment:
    """The task as a sequence model sees it: the last `length` moments, and a return to reach.

    Args:
      env: with continuous actions.
      length: K.
      target: return that the episode is asked for (Chen et al. 2021, "Decision Transformer").
    """

    def shift(old: jax.Array, new: Any) -> jax.Array:
        return jnp.concatenate([old[1:], jnp.asarray(new, old.dtype)[None]])

    def reset(key: jax.Array) -> tuple[Any, History]:
        state, observation = env.reset(key)
        empty = History(
            jnp.zeros((length, env.space.observation)),
            jnp.zeros((length, env.space.action)),
            jnp.zeros(length),
            jnp.full(length, -1),
        )
        window = History(
            shift(empty.observations, observation),
            empty.actions,
            shift(empty.returns_to_go, target),
            shift(empty.clock, 0),
        )
        return (state, window), window

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        inner, window = state
        out = env.step(key, inner, action)
        window = History(
            shift(window.observations, out.observation),
            shift(window.actions.at[-1].set(action), jnp.zeros(env.space.action)),
            shift(window.returns_to_go, window.returns_to_go[-1] - out.reward),
            shift(window.clock, window.clock[-1] + 1),
        )
        return out._replace(state=(out.state, window), observation=window)

    return env._replace(name=f"{env.name}/history{length}", reset=reset, step=step)
