"""What a run repeats: one pure step from carry to carry, offline or online, scanned and vmapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from data.offline.transitions import Transitions
from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics
from jaxrl.control.environment import Environment, begin, play, random_action
from jaxrl.control.rollout import Act, play_all
from jaxrl.types import TrainState


class Carry(NamedTuple):
    """All that a seed's run carries: saved whole, it continues exactly."""

    learner: TrainState
    key: jax.Array
    world: Any = ()
    replay: Any = ()


class Program(NamedTuple):
    """A phase of training."""

    algorithm: Algorithm
    init: Callable[[jax.Array, TrainState, Any], Carry]
    """key, learner, data -> the carry before the first step."""
    step: Callable[[Carry, Any], tuple[Carry, Metrics]]
    steps: int
    """How often `step` is taken."""
    name: str
    env_steps: int = 0
    """Steps of the environment in one `step`."""
    adopt: Callable[[TrainState, TrainState], TrainState] = lambda before, fresh: before
    """The learner at the start, from that of the phase before and a fresh one."""


def split(carry: Carry, count: int) -> tuple[jax.Array, ...]:
    """The carry's next key, and `count` keys to use now."""
    return tuple(jax.random.split(carry.key, count + 1))


def offline(algorithm: Algorithm, *, steps: int) -> Program:
    """Updates on a fixed data set, one a step."""

    def init(key: jax.Array, learner: TrainState, data: Any) -> Carry:
        return Carry(learner, key)

    def step(carry: Carry, data: Any) -> tuple[Carry, Metrics]:
        key, draw, update = split(carry, 2)
        batch = algorithm.sample(draw, data, algorithm.batch_size)
        learner, metrics = algorithm.update(update, carry.learner, batch)
        return carry._replace(learner=learner, key=key), metrics

    return Program(algorithm, init, step, steps, "offline")


def online(
    algorithm: Algorithm,
    env: Environment,
    *,
    steps: int,
    worlds: int = 1,
    every: int = 1,
    updates: int = 1,
    warmup: int = 1000,
    warm: Act | None = None,
    capacity: int = 0,
    prior: float = 0.0,
    adopt: Callable[[TrainState, TrainState], TrainState] = lambda before, fresh: before,
) -> Program:
    """Off-policy training: steps of each world into the replay buffer, then updates from it.

    Args:
      algorithm: what learns and acts.
      env: where.
      steps: of all worlds together, the warm-up not counted.
      worlds: copies of the environment.
      every: steps of each world before updates.
      updates: after them.
      warmup: steps in the buffer before the first update.
      warm: who takes them; uniform actions when omitted.
      capacity: of the buffer; all steps when 0.
      prior: share of each batch that is drawn from the offline data (RLPD: 1/2).
      adopt: see `Program`.
    """
    sees = algorithm.observe(env)
    if warm is None:
        warm = lambda key, params, observation: random_action(key, env.space)  # noqa: E731
    cycles, warm_cycles = -(-steps // (worlds * every)), max(1, -(-warmup // worlds))
    rows = -(-capacity // worlds) if capacity else cycles * every + warm_cycles
    old = round(prior * algorithm.batch_size)

    def several(act: Act, carry: Carry, key: jax.Array, count: int) -> Carry:
        """`count` steps of all worlds."""

        def advance(held: tuple, keys: jax.Array) -> tuple[tuple, None]:
            world, ring = held
            world, played = play_all(sees, act, carry.learner.params, keys, world)
            return (world, replay.add(ring, played)), None

        keys = jax.random.split(key, (count, 2, worlds))
        (world, ring), _ = jax.lax.scan(advance, (carry.world, carry.replay), keys)
        return carry._replace(world=world, replay=ring)

    def init(key: jax.Array, learner: TrainState, data: Any) -> Carry:
        key, start, warming = jax.random.split(key, 3)
        world = jax.vmap(lambda k: begin(sees, k))(jax.random.split(start, worlds))
        one = lambda k: play(sees, k, begin(sees, k), random_action(k, env.space))[1]  # noqa: E731
        example = jax.eval_shape(one, start)
        carry = Carry(learner, key, world, replay.empty(example, rows * worlds))
        return several(warm, carry, warming, warm_cycles)

    def step(carry: Carry, data: Any) -> tuple[Carry, Metrics]:
        key, playing, learning = split(carry, 2)
        carry = carry._replace(key=key)
        carry = several(algorithm.act, carry, playing, every)

        def update(learner: TrainState, keys: jax.Array) -> tuple[TrainState, Metrics]:
            new_key, old_key, update_key = keys
            batch = replay.sample(new_key, carry.replay, algorithm.batch_size - old)
            if old:
                batch = join(algorithm.sample(old_key, data, old), batch)
            return algorithm.update(update_key, learner, batch)

        keys = jax.random.split(learning, (updates, 3))
        learner, metrics = jax.lax.scan(update, carry.learner, keys)
        return carry._replace(learner=learner), jax.tree.map(jnp.mean, metrics)

    return Program(algorithm, init, step, cycles, "online", worlds * every, adopt)


def offline_first(
    algorithm: Algorithm, env: Environment, *, steps: int, online_steps: int
) -> tuple[Program, ...]:
    """Offline, and then online if asked: from the trained policy, the data in half of a batch.

    Args:
      algorithm: of both phases.
      env: where the second plays.
      steps: of the first.
      online_steps: of the environment in the second; 0 leaves it out.
    """
    first = offline(algorithm, steps=steps)
    if not online_steps:
        return (first,)
    return first, online(algorithm, env, steps=online_steps, warm=algorithm.act, prior=0.5)


def join(first: Transitions, second: Transitions) -> Transitions:
    """Two batches as one; what only one of them has in `extra` is left out."""
    shared = first.extra.keys() & second.extra.keys()
    pair = [b._replace(extra={name: b.extra[name] for name in shared}) for b in (first, second)]
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *pair)
