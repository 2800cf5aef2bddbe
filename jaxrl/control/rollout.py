"""Whole episodes of a policy: for evaluation and for data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control.environment import Environment, World, begin, play
from jaxrl.data.offline import transitions
from jaxrl.data.offline.transitions import Transitions

Act = Callable[[jax.Array, Any, Any], jax.Array]
"""(key, params, observation) -> action."""


class Outcome(NamedTuple):
    """Of each episode, [episodes]."""

    returns: jax.Array
    """Undiscounted."""
    lengths: jax.Array
    costs: jax.Array


def evaluate(env: Environment, act: Act, params: Any, key: jax.Array, *, episodes: int) -> Outcome:
    """Play `episodes` whole episodes at once."""

    def episode(key: jax.Array) -> Outcome:
        world = begin(env, jax.random.fold_in(key, 0))

        def step(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
            state, observation, alive, sums = carry
            act_key, step_key = jax.random.split(jax.random.fold_in(key, t + 1))
            out = env.step(step_key, state, act(act_key, params, observation))
            gained = jnp.stack([out.reward, 1.0, jnp.asarray(out.cost, jnp.float32)])
            # After the end the state no longer moves: what it holds may not be finite there.
            hold = lambda new, old: jnp.where(alive, new, old)  # noqa: E731
            carry = (
                jax.tree.map(hold, out.state, state),
                jax.tree.map(hold, out.observation, observation),
                alive & ~jnp.asarray(out.terminal, bool),
                sums + jnp.where(alive, gained, 0.0),
            )
            return carry, None

        start = (world.state, world.observation, jnp.asarray(True), jnp.zeros(3))
        (_, _, _, sums), _ = jax.lax.scan(step, start, jnp.arange(env.horizon))
        return Outcome(*sums)

    return jax.vmap(episode)(jax.random.split(key, episodes))


def play_all(
    env: Environment, act: Act, params: Any, keys: jax.Array, worlds: World
) -> tuple[World, Transitions]:
    """One step of a policy in every world.

    Args:
      env: the task.
      act: the policy.
      params: its parameters.
      keys: [2, W, ...], of its actions and of the task.
      worlds: leaves [W, ...].

    Returns:
      The worlds after it, and the steps, leaves [W, ...].
    """
    act_keys, play_keys = keys
    actions = jax.vmap(act, (0, None, 0))(act_keys, params, worlds.observation)
    return jax.vmap(lambda *a: play(env, *a))(play_keys, worlds, actions)


def gather(
    env: Environment, act: Act, params: Any, key: jax.Array, *, steps: int, worlds: int = 16
) -> Transitions:
    """At least `steps` steps of a policy in `worlds` copies of the environment, as a data set.

    Returns:
      NumPy arrays, episode after episode; the last one of each copy is cut off.
    """
    length = -(-steps // worlds)

    def step(world: Any, key: jax.Array) -> tuple[Any, Transitions]:
        act_key, play_key = jax.random.split(key)
        return play(env, play_key, world, act(act_key, params, world.observation))

    def copy(key: jax.Array) -> Transitions:
        keys = jax.random.split(jax.random.fold_in(key, 1), length)
        return jax.lax.scan(step, begin(env, jax.random.fold_in(key, 0)), keys)[1]

    played = jax.jit(jax.vmap(copy))(jax.random.split(key, worlds))
    played = jax.tree.map(np.array, played)
    played.ends[:, -1] = 1.0
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), played)
    return transitions.check(flat)
