"""What an environment is: two pure functions. And how one is played, step by step, in jit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.data.offline.transitions import Transitions


class Space(NamedTuple):
    """The sizes that networks are built from."""

    observation: int
    action: int
    """Dimensions of a continuous action, or the number of choices."""
    discrete: bool = False
    shape: tuple[int, ...] = ()
    """H, W, C of pictures, whose observations are flat rows [H W C] of uint8; empty for numbers."""


class Step(NamedTuple):
    """What an action leads to."""

    state: Any
    observation: Any
    reward: jax.Array
    terminal: jax.Array
    """Bool: the episode is over by itself. Time limits are the runner's."""
    cost: jax.Array | float = 0.0
    """What a constraint counts."""


class Environment(NamedTuple):
    """A task: pure functions of one episode, vectorised by `vmap`. Actions lie in [-1, 1]^A."""

    name: str
    space: Space
    horizon: int
    """Steps after which an episode is cut off."""
    reset: Callable[[jax.Array], tuple[Any, Any]]
    """key -> state, observation."""
    step: Callable[[jax.Array, Any, jax.Array], Step]
    """key, state, action -> what follows."""
    host: Callable[..., Any] | None = None
    """Where the task is played on the host: seeds of the copies -> a `host.Vector` of them. `reset`
    and `step` cannot be called then."""
    layouts: Mapping[str, Any] = {}
    """`observation` and `action` as `spaces.layout` has them; empty where nothing is flattened."""


class World(NamedTuple):
    """An unfinished episode."""

    state: Any
    observation: Any
    clock: jax.Array
    """int32: steps since the reset."""


class Trail(NamedTuple):
    """How unfinished episodes on the host came to where they are, so that they can be played again.

    Leaves lead with [N], or with [seeds, worlds] where a run carries them.
    """

    seeds: Any
    """uint32: of the copies of the environment."""
    episodes: Any
    """int32: which episode of its copy it is; it was reset with a seed of both."""
    clock: Any
    """int32: steps since the reset."""
    actions: Any
    """[..., T, A] float32 or [..., T] int32: of the policy, the first `clock` of them."""
    checksum: Any
    """uint32: of the observations and rewards so far."""


LONGEST_TRAIL = 100_000
"""Most steps of an episode that a `Trail` keeps."""


def blank_trail(env: Environment, worlds: int) -> Trail:
    """The trail of `worlds` copies before any step, zeros alone."""
    steps = min(env.horizon, LONGEST_TRAIL)
    actions = jnp.zeros((worlds, steps), jnp.int32)
    if not env.space.discrete:
        actions = jnp.zeros((worlds, steps, env.space.action), jnp.float32)
    signed, unsigned = (jnp.zeros(worlds, kind) for kind in (jnp.int32, jnp.uint32))
    return Trail(unsigned, signed, signed, actions, unsigned)


def begin(env: Environment, key: jax.Array) -> World:
    """A fresh episode."""
    return World(*env.reset(key), jnp.zeros((), jnp.int32))


def play(
    env: Environment, key: jax.Array, world: World, action: jax.Array
) -> tuple[World, Transitions]:
    """One step; where the episode ends, a fresh one begins. Vectorise over worlds by `vmap`.

    Returns:
      The world after it, and the step as a transition without leading axis.
    """
    step_key, reset_key = jax.random.split(key)
    step = env.step(step_key, world.state, action)
    clock = world.clock + 1
    terminal = jnp.asarray(step.terminal, bool)
    ended = terminal | (clock >= env.horizon)
    after = World(step.state, step.observation, clock)
    fresh = begin(env, reset_key)
    next_world = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, after)
    transition = Transitions(
        observations=world.observation,
        actions=action,
        rewards=jnp.asarray(step.reward, jnp.float32),
        next_observations=step.observation,
        terminals=terminal.astype(jnp.float32),
        ends=ended.astype(jnp.float32),
    )
    return next_world, transition


def random_action(key: jax.Array, space: Space) -> jax.Array:
    """A uniform action."""
    if space.discrete:
        return jax.random.randint(key, (), 0, space.action)
    return jax.random.uniform(key, (space.action,), minval=-1.0, maxval=1.0)
