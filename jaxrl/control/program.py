"""What a run repeats: one pure step from carry to carry, offline or online, scanned and vmapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.control import replay
from jaxrl.control.algorithm import Algorithm, Metrics
from jaxrl.control.batches import Batch, with_own_terminals
from jaxrl.control.environment import (
    Environment,
    Space,
    begin,
    blank_trail,
    play,
    random_action,
)
from jaxrl.control.rollout import keep_memories, memories, play_all, with_memory
from jaxrl.data.offline.transitions import Transitions
from jaxrl.types import TrainState


class Carry(NamedTuple):
    """All that a seed's run carries: saved whole, it continues exactly."""

    learner: TrainState
    key: jax.Array
    world: Any = ()
    """The unfinished episodes: a `World` in JAX, a `Trail` on the host."""
    replay: Any = ()
    memory: Any = ()
    """What the policy remembers in each world, [W, ...]; () of a policy without memory."""


class Play(NamedTuple):
    """How a phase that plays goes on, whether its worlds are inside of the program or outside.

    The worlds take `segment` steps, each of which goes through `absorb`, and then `learn` follows.
    """

    worlds: int
    segment: int
    """Steps of each world before `learn`."""
    warmup: int
    """Steps of each world, taken by `warm`, before the first of all."""
    warm: Callable[..., Any]
    begin: Callable[[jax.Array, TrainState, Any, Transitions], Carry]
    """key, learner, data, one step without leading axis -> the carry, without worlds."""
    absorb: Callable[[Carry, jax.Array, Transitions], Carry]
    """carry, clocks [W] before the step, a step of all worlds [W, ...] -> the carry with it."""
    learn: Callable[[Carry, jax.Array, Any], tuple[Carry, Metrics]]
    """carry, key, data -> the carry after the updates, mean metrics."""


class Program(NamedTuple):
    """A phase of training."""

    algorithm: Algorithm
    init: Callable[[jax.Array, TrainState, Any], Carry]
    """key, learner, data -> the carry before the first step."""
    step: Callable[[Carry, Any], tuple[Carry, Metrics]]
    steps: int
    """How often `step` is taken."""
    name: str
    draw: Callable[[jax.Array, Carry, Any], Batch]
    """key, carry, data -> a batch as `step` learns from it."""
    env_steps: int = 0
    """Steps of the environment in one `step`."""
    adopt: Callable[[TrainState, TrainState], TrainState] = lambda before, fresh: before
    """The learner at the start, from that of the phase before and a fresh one."""
    needs_data: bool = False
    """Whether it learns from an offline data set."""
    play: Play | None = None
    """Its two halves, where it plays."""


def split(carry: Carry, count: int) -> tuple[jax.Array, ...]:
    """The carry's next key, and `count` keys to use now."""
    return tuple(jax.random.split(carry.key, count + 1))


def draw(
    algorithm: Algorithm,
    key: jax.Array,
    *,
    data: Any = None,
    ring: replay.Replay | None = None,
    share: float = 0.0,
) -> Batch:
    """A batch for `algorithm`, or its minibatches, each with the same share of offline data.

    Args:
      algorithm: that learns from it.
      key: of the draw.
      data: what it prepared of the data set; not read where `share` is 0.
      ring: the replay buffer; not read where `share` is 1.
      share: part of the rows that is drawn from the data set.
    """
    old = round(share * algorithm.batch_size)
    new = algorithm.batch_size - old

    def sample_batch(key: jax.Array) -> Batch:
        old_key, new_key = jax.random.split(key)
        batch: dict[str, Any] = {}
        if old:
            parts = algorithm.sample(old_key, data, old)
            batch |= {name: with_own_terminals(part) for name, part in parts.items()}
        if new:
            batch |= algorithm.recall(new_key, ring, new)
        return batch

    if not algorithm.minibatches:
        return sample_batch(key)
    return jax.vmap(sample_batch)(jax.random.split(key, algorithm.minibatches))


def offline(algorithm: Algorithm, *, steps: int) -> Program:
    """Updates on a fixed data set, one a step."""

    def init(key: jax.Array, learner: TrainState, data: Any) -> Carry:
        return Carry(algorithm.begin(learner, data), key)

    def sample(key: jax.Array, carry: Carry, data: Any) -> Batch:
        return draw(algorithm, key, data=data, share=1.0)

    def step(carry: Carry, data: Any) -> tuple[Carry, Metrics]:
        key, batch_key, update = split(carry, 2)
        batch = sample(batch_key, carry, data)
        learner, metrics = algorithm.update(update, carry.learner, batch)
        return carry._replace(learner=learner, key=key), metrics

    return Program(algorithm, init, step, steps, "offline", sample, needs_data=True)


def online(
    algorithm: Algorithm,
    env: Environment,
    *,
    steps: int,
    worlds: int = 1,
    every: int = 1,
    updates: int = 1,
    warmup: int = 1000,
    warm: Callable[..., Any] | None = None,
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
      warm: the policy that takes them; uniform actions when omitted.
      capacity: of the buffer; all steps when 0.
      prior: share of each minibatch that is drawn from the offline data (RLPD: 1/2).
      adopt: see `Program`.
    """
    sees = algorithm.observe(env)
    if warm is None:
        warm = lambda key, params, observation: random_action(key, env.space)  # noqa: E731
    cycles, warm_cycles = -(-steps // (worlds * every)), max(1, -(-warmup // worlds))
    rows = -(-capacity // worlds) if capacity else cycles * every + warm_cycles
    returns = algorithm.returns

    def noted(step: Transitions) -> Transitions:
        """With the arrays that the replay buffer keeps of returns."""
        zeros = jnp.zeros_like(step.rewards)
        return step._replace(extra={"return_to_go": zeros, "finished": zeros})

    def start(key: jax.Array, learner: TrainState, data: Any, example: Transitions) -> Carry:
        if data is not None:
            learner = algorithm.begin(learner, data)
        form = example if returns is None else jax.eval_shape(noted, example)
        return Carry(learner, key, replay=replay.empty(form, rows * worlds))

    def absorb(carry: Carry, clock: jax.Array, played: Transitions) -> Carry:
        if returns is None:
            return carry._replace(replay=replay.add(carry.replay, played))
        ring = replay.add(carry.replay, noted(played))
        ring = replay.credit(ring, clock, discount=returns, horizon=sees.horizon)
        return carry._replace(replay=ring)

    def finished_rows(part: Any) -> Any:
        """Rows of the replay buffer with the return to go of episodes that have ended."""
        extra = dict(part.extra)
        over = extra.pop("finished") > 0
        return part._replace(
            extra=extra | {"return_to_go": jnp.where(over, extra["return_to_go"], -jnp.inf)}
        )

    def sample(key: jax.Array, carry: Carry, data: Any) -> Batch:
        batch = draw(algorithm, key, data=data, ring=carry.replay, share=prior)
        if returns is None:
            return batch
        return {n: finished_rows(p) if "finished" in p.extra else p for n, p in batch.items()}

    def learn(carry: Carry, key: jax.Array, data: Any) -> tuple[Carry, Metrics]:
        def update(learner: TrainState, keys: jax.Array) -> tuple[TrainState, Metrics]:
            batch_key, update_key = keys
            return algorithm.update(update_key, learner, sample(batch_key, carry, data))

        keys = jax.random.split(key, (updates, 2))
        learner, metrics = jax.lax.scan(update, carry.learner, keys)
        return carry._replace(learner=learner), jax.tree.map(jnp.mean, metrics)

    parts = Play(worlds, every, warm_cycles, warm, start, absorb, learn)
    return playing(
        algorithm, sees, parts, steps=cycles, draw=sample, adopt=adopt, needs_data=prior > 0
    )


def playing(
    algorithm: Algorithm,
    env: Environment,
    parts: Play,
    *,
    steps: int,
    draw: Callable[[jax.Array, Carry, Any], Batch],
    adopt: Callable[[TrainState, TrainState], TrainState] = lambda before, fresh: before,
    needs_data: bool = False,
) -> Program:
    """A phase that plays in `env`, both halves in one compiled step.

    Args:
      algorithm: whose `act` plays.
      env: as the policy sees it.
      parts: the two halves.
      steps: segments of all worlds.
      draw, adopt, needs_data: see `Program`.
    """
    worlds = parts.worlds

    def advance(act: Callable[..., Any], carry: Carry, key: jax.Array, count: int) -> Carry:
        """`count` steps of all worlds."""
        recall = with_memory(act, algorithm.memory)

        def move(carry: Carry, keys: jax.Array) -> tuple[Carry, None]:
            clock, params = carry.world.clock, carry.learner.params
            world, played, after = play_all(env, recall, params, keys, carry.world, carry.memory)
            carry = carry._replace(world=world)
            return absorb(algorithm, parts, carry, clock, played, after), None

        return jax.lax.scan(move, carry, jax.random.split(key, (count, 2, worlds)))[0]

    def init(key: jax.Array, learner: TrainState, data: Any) -> Carry:
        key, start, warming = jax.random.split(key, 3)
        if env.host is not None:
            carry = parts.begin(key, learner, data, blank_step(env.space))
            return carry._replace(
                world=blank_trail(env, worlds), memory=memories(algorithm.memory, worlds)
            )
        world = jax.vmap(lambda k: begin(env, k))(jax.random.split(start, worlds))
        example_step = lambda k: play(env, k, begin(env, k), random_action(k, env.space))[1]  # noqa: E731
        carry = parts.begin(key, learner, data, jax.eval_shape(example_step, start))
        carry = carry._replace(world=world, memory=memories(algorithm.memory, worlds))
        return advance(parts.warm, carry, warming, parts.warmup) if parts.warmup else carry

    def step(carry: Carry, data: Any) -> tuple[Carry, Metrics]:
        key, moving, learning = split(carry, 2)
        carry = advance(algorithm.act, carry._replace(key=key), moving, parts.segment)
        return parts.learn(carry, learning, data)

    return Program(
        algorithm, init, step, steps, "online", draw, worlds * parts.segment, adopt,
        needs_data, parts,
    )  # fmt: skip


def absorb(
    algorithm: Algorithm, parts: Play, carry: Carry, clock: jax.Array, played: Transitions,
    after: Any,
) -> Carry:  # fmt: skip
    """The carry with a step of all worlds, and with the memories of the next one.

    Args:
      algorithm: whose policy took the step.
      parts: whose `absorb` takes it.
      carry: before it.
      clock: [W] before it.
      played: the step, leaves [W, ...].
      after: memories [W, ...] after it.
    """
    played, memory = keep_memories(played, carry.memory, after, algorithm.memory)
    return parts.absorb(carry._replace(memory=memory), clock, played)


def blank_step(space: Space) -> Transitions:
    """The shapes of one step in an environment of these sizes."""
    form = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    action = jax.ShapeDtypeStruct((), jnp.int32) if space.discrete else form(space.action)
    kind = jnp.uint8 if space.shape else jnp.float32
    observation = jax.ShapeDtypeStruct((space.observation,), kind)
    return Transitions(observation, action, form(), observation, form(), form())


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
