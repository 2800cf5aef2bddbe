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
Recall = Callable[[jax.Array, Any, Any, Any], tuple[jax.Array, Any]]
"""(key, params, observation, memory) -> action, memory after it."""


def with_memory(act: Callable[..., Any], start: Any) -> Recall:
    """`act` as a policy with a memory; it is one already where `start` has arrays."""
    if jax.tree.leaves(start):
        return act
    return lambda key, params, observation, memory: (act(key, params, observation), memory)


def memories(start: Any, *lead: int) -> Any:
    """The memory `start` of each of several episodes: leaves [*lead, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape)), start)


def keep_memories(
    steps: Transitions, before: Any, after: Any, start: Any
) -> tuple[Transitions, Any]:
    """Steps with the memories that they were taken with, and the memories of the next steps.

    Args:
      steps: leaves [W, ...].
      before, after: memories [W, ...] before and after the steps.
      start: the memory before an episode, which follows an end; () changes nothing.

    Returns:
      The steps, `before` as `memory` in their `extra`, and the memories [W, ...].
    """
    if not jax.tree.leaves(start):
        return steps, after

    def renew(memory: jax.Array, first: jax.Array) -> jax.Array:
        return jnp.where(steps.ends.reshape(-1, *[1] * first.ndim) > 0, first, memory)

    steps = steps._replace(extra={**steps.extra, "memory": before})
    return steps, jax.tree.map(renew, after, start)


class Outcome(NamedTuple):
    """Of each episode, [episodes]."""

    returns: jax.Array
    """Undiscounted."""
    lengths: jax.Array
    costs: jax.Array


def evaluate(
    env: Environment,
    act: Callable[..., Any],
    params: Any,
    key: jax.Array,
    *,
    episodes: int,
    memory: Any = (),
) -> Outcome:
    """Play `episodes` whole episodes at once.

    Args:
      env: the task.
      act: the policy, an `Act`, or a `Recall` where there is a memory.
      params: its parameters.
      key: of all draws.
      episodes: how many.
      memory: what the policy remembers before an episode.
    """
    recall = with_memory(act, memory)

    def episode(key: jax.Array) -> Outcome:
        world = begin(env, jax.random.fold_in(key, 0))

        def step(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
            state, observation, alive, sums, memory = carry
            act_key, step_key = jax.random.split(jax.random.fold_in(key, t + 1))
            action, memory = recall(act_key, params, observation, memory)
            out = env.step(step_key, state, action)
            gained = jnp.stack([out.reward, 1.0, jnp.asarray(out.cost, jnp.float32)])
            # After the end the state no longer moves: what it holds may not be finite there.
            hold = lambda new, old: jnp.where(alive, new, old)  # noqa: E731
            carry = (
                jax.tree.map(hold, out.state, state),
                jax.tree.map(hold, out.observation, observation),
                alive & ~jnp.asarray(out.terminal, bool),
                sums + jnp.where(alive, gained, 0.0),
                memory,
            )
            return carry, None

        start = (world.state, world.observation, jnp.asarray(True), jnp.zeros(3), memories(memory))
        (_, _, _, sums, _), _ = jax.lax.scan(step, start, jnp.arange(env.horizon))
        return Outcome(*sums)

    return jax.vmap(episode)(jax.random.split(key, episodes))


def play_all(
    env: Environment, act: Recall, params: Any, keys: jax.Array, worlds: World, memories: Any
) -> tuple[World, Transitions, Any]:
    """One step of a policy in every world.

    Args:
      env: the task.
      act: the policy.
      params: its parameters.
      keys: [2, W, ...], of its actions and of the task.
      worlds: leaves [W, ...].
      memories: leaves [W, ...].

    Returns:
      The worlds after it, the steps, and the memories, leaves [W, ...].
    """
    act_keys, play_keys = keys
    act_in_worlds = jax.vmap(act, (0, None, 0, 0))
    actions, after = act_in_worlds(act_keys, params, worlds.observation, memories)
    return *jax.vmap(lambda *a: play(env, *a))(play_keys, worlds, actions), after


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
