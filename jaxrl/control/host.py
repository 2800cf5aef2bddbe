"""Environments of Gymnasium, stepped by Python around compiled halves of a phase.

One vector holds the worlds of all seeds. A step of all of them is one call of the policy, one of
the vector and one that puts the steps into the replay buffers; the updates are one call more.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control import spaces
from jaxrl.control.environment import LONGEST_TRAIL, Environment, Trail, blank_trail
from jaxrl.control.program import Carry, Program, absorb, split
from jaxrl.control.rollout import memories, with_memory
from jaxrl.data.offline.transitions import Transitions


def environment(name: str, make: Callable[[], Any], horizon: int = 1000) -> Environment:
    """A task that `make` gives a `gymnasium.Env` of, with the spaces that policies can play.

    Args:
      name: of the task.
      make: a fresh environment at each call.
      horizon: steps after which an episode is cut off where the environment has no limit itself.

    Raises:
      ValueError: a space that no policy here reads or plays.
    """
    import gymnasium

    single = make()
    if not isinstance(single, gymnasium.Env):
        raise ValueError(
            f"env={name!r} gives {type(single).__name__}; give a gymnasium.Env or a "
            "jaxrl.control.environment.Environment"
        )
    limit = getattr(single.spec, "max_episode_steps", None) if single.spec else None
    layouts = {
        "observation": spaces.layout(single.observation_space, f"the observations of {name!r}"),
        "action": spaces.layout(single.action_space, f"the actions of {name!r}"),
    }
    single.close()

    def limited() -> Any:
        return make() if limit else gymnasium.wrappers.TimeLimit(make(), horizon)

    def refuse(*args: Any) -> Any:
        raise ValueError(
            f"env={name!r} is played on the host, and what was asked for works with environments "
            "in JAX alone; choose one of those"
        )

    sizes = spaces.space_of(layouts["observation"], layouts["action"], repr(name))
    env = Environment(name, sizes, int(limit or horizon), refuse, refuse, layouts=layouts)
    vector = lambda seeds: Vector(limited, layouts, seeds, blank_trail(env, len(seeds)))  # noqa: E731
    return env._replace(host=vector)


class Vector:
    """Copies of an environment, stepped together; where an episode ends, a fresh one begins.

    Each episode is reset with a seed that follows from the seed of its copy and its number, so that
    seeds and actions say where the copies are, see `trail` and `replay`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        layouts: Mapping[str, spaces.Layout],
        seeds: Sequence[int],
        blank: Trail,
    ) -> None:
        """Make and reset a copy for each of `seeds`; `blank` has a row for each."""
        self._copies = [make() for _ in seeds]
        self._layouts = layouts
        self._trail = Trail(*(np.array(leaf) for leaf in blank))
        self._trail.seeds[:] = seeds
        self.observations = np.stack([self._reset(i) for i in range(len(seeds))])
        """[N, O] float32, or uint8 of pictures."""
        self.judge: Callable[[int, np.ndarray], bool] | None = None
        """Copy, what it sees [O] after a step -> whether that is success, which is then the reward
        and ends the episode; None: the environment's own reward."""

    @property
    def clock(self) -> np.ndarray:
        """[N] int32: steps since the reset."""
        return self._trail.clock.copy()

    @property
    def trail(self) -> Trail:
        """How the copies came to where they are; leaves [N, ...], a copy."""
        return Trail(*(leaf.copy() for leaf in self._trail))

    def step(self, actions: np.ndarray) -> tuple[Transitions, np.ndarray]:
        """Take `actions`, [N, A] in [-1, 1] or [N]; the steps [N, ...], and their costs [N]."""
        played = spaces.to_environment(self._layouts["action"], actions)
        following = np.empty_like(self.observations)
        rewards, terminals, ends, costs = np.zeros((4, len(played)), np.float32)
        for i, action in enumerate(played):
            following[i], rewards[i], terminals[i], ends[i], costs[i] = self._step(i, action)
            if self._trail.clock[i] <= self._trail.actions.shape[1]:
                self._trail.actions[i, self._trail.clock[i] - 1] = actions[i]
        before, self.observations = self.observations, following.copy()
        for i in np.flatnonzero(ends).tolist():
            self._trail.episodes[i] += 1
            self.observations[i] = self._reset(i)
        return Transitions(before, actions, rewards, following, terminals, ends), costs

    def replay(self, trail: Trail) -> bool:
        """Play the unfinished episodes of `trail`, leaves [N, ...] of as many copies, once more.

        Returns:
          Whether every observation and reward was what it had been. If not, these copies are not
          to be used.
        """
        if int(np.max(trail.clock)) > trail.actions.shape[1]:
            return False
        for i in range(len(self._copies)):
            self._trail.seeds[i], self._trail.episodes[i] = trail.seeds[i], trail.episodes[i]
            self._trail.actions[i] = trail.actions[i]
            self.observations[i] = self._reset(i)
            steps = int(trail.clock[i])
            played = spaces.to_environment(self._layouts["action"], trail.actions[i, :steps])
            for action in played:
                self.observations[i], _, _, over, _ = self._step(i, action)
                if over:
                    return False
            if self._trail.checksum[i] != trail.checksum[i]:
                return False
        return True

    def render(self) -> np.ndarray:
        """A picture [H, W, 3] uint8 of the first copy."""
        return np.asarray(self._copies[0].render())

    def close(self) -> None:
        """Close the copies."""
        for copy in self._copies:
            copy.close()

    def _reset(self, i: int) -> np.ndarray:
        """Begin the episode of copy `i` that its row of the trail names; what is seen [O]."""
        seed, episode = int(self._trail.seeds[i]), int(self._trail.episodes[i])
        observation, _ = self._copies[i].reset(seed=hash_seed(seed, episode) if episode else seed)
        flat = self._flatten(observation)
        self._trail.clock[i] = 0
        self._trail.checksum[i] = zlib.crc32(flat.data)
        return flat

    def _step(self, i: int, action: Any) -> tuple[np.ndarray, float, bool, bool, float]:
        """Play `action` in copy `i`: what is seen [O], reward, terminal, end and cost."""
        observation, reward, terminal, cut, info = self._copies[i].step(action)
        flat, reward = self._flatten(observation), np.float32(reward)
        self._trail.clock[i] += 1
        checksum = zlib.crc32(flat.data, int(self._trail.checksum[i]))
        self._trail.checksum[i] = zlib.crc32(reward.tobytes(), checksum)
        if self.judge is not None:
            success = self.judge(i, flat)
            reward, terminal = np.float32(success), bool(terminal) or success
        over = bool(terminal) or bool(cut)
        return flat, float(reward), bool(terminal), over, float(info.get("cost", 0.0))

    def _flatten(self, observation: Any) -> np.ndarray:
        form = self._layouts["observation"]
        if form["kind"] == "box":  # most environments, and this is the inner loop
            return np.asarray(observation, np.float32).ravel()
        flat = spaces.flatten(form, spaces.as_batch(form, observation))[0]
        return np.ascontiguousarray(flat)  # of a slice it may be a view with gaps


def advance(
    program: Program, env: Environment, seeds: Sequence[int], note: Callable[[str], None]
) -> Callable[[Carry, Any, int], tuple[Carry, Any]]:
    """carries, data, length -> the carries after as many steps of `program`, and mean metrics.

    The worlds live as long as the function; the first call after the start of a phase takes the
    steps that precede its first update. In a run that continues the unfinished episodes are played
    once more, see `Trail`; where they come out otherwise, `note` is told so and fresh ones begin.
    """
    parts, host = program.play, env.host
    assert parts is not None and host is not None
    worlds, count = parts.worlds, len(seeds)
    vectors: list[Vector] = []
    add = jax.vmap(functools.partial(absorb, program.algorithm, parts))
    fresh = jax.jit(add)
    # not the first of a call: what it was given may be a point that is still read
    again = jax.jit(add, donate_argnums=0)
    learn = jax.jit(jax.vmap(parts.learn, (0, 0, None)))
    start = program.algorithm.memory
    policies = [policy(act, start) for act in (parts.warm, program.algorithm.act)]
    keys_of = jax.jit(jax.vmap(lambda carry: split(carry, 2)))

    def play_steps(act: Any, carry: Carry, keys: jax.Array, steps: int) -> Carry:
        vector = vectors[0]
        for t in range(steps):
            observations = vector.observations.reshape(count, worlds, -1)
            choices, after = act(carry.learner.params, keys, t, observations, carry.memory)
            actions = np.asarray(choices)
            clock = vector.clock.reshape(count, worlds)
            played, _ = vector.step(actions.reshape(count * worlds, *actions.shape[2:]))
            steps_now = jax.tree.map(lambda x: x.reshape(count, worlds, *x.shape[1:]), played)
            carry = (again if t else fresh)(carry, clock, steps_now, after)
        return carry

    def open_worlds(trail: Trail, steps: int) -> tuple[Vector, bool]:
        """The worlds of a run after `steps` steps, and whether they are where they had been."""
        numbers = numbers_of(seeds, worlds, steps)
        vector = host(numbers)
        if not steps or vector.replay(rows(trail)):
            return vector, True
        vector.close()
        note_fresh(env, note)
        return host(numbers), False

    def run(carry: Carry, data: Any, length: int) -> tuple[Carry, Any]:
        trail, carry = carry.world, carry._replace(world=())
        begins = not vectors and bool(np.all(np.asarray(carry.replay.count) == 0))
        if not vectors:
            steps = int(np.max(np.asarray(carry.replay.count)))
            vector, repeated = open_worlds(trail, steps)
            vectors.append(vector)
            if not repeated:
                carry = carry._replace(memory=memories(start, count, worlds))
        totals = None
        if begins and parts.warmup:
            key, moving, _ = keys_of(carry)
            carry = play_steps(policies[0], carry._replace(key=key), moving, parts.warmup)
        for _ in range(length):
            key, moving, learning = keys_of(carry)
            carry = play_steps(policies[1], carry._replace(key=key), moving, parts.segment)
            carry, metrics = learn(carry, learning, data)
            totals = metrics if totals is None else jax.tree.map(jnp.add, totals, metrics)
        trail = Trail(
            *(jnp.array(x.reshape(count, worlds, *x.shape[1:])) for x in vectors[0].trail)
        )
        return carry._replace(world=trail), jax.tree.map(lambda x: x / length, totals)

    return run


def numbers_of(seeds: Sequence[int], worlds: int, steps: int) -> list[int]:
    """Seeds of the worlds of all seeds, opened after `steps` steps, [S W]."""
    return [hash_seed(seed, w, steps, 0) for seed in seeds for w in range(worlds)]


def note_fresh(env: Environment, note: Callable[[str], None]) -> None:
    """Say that a run goes on otherwise than it would have."""
    note(
        f"env={env.name!r} does not repeat an episode from its seed and its actions, or has "
        f"one of over {LONGEST_TRAIL} steps, so the run continues with fresh episodes, and not "
        "as it would have gone on"
    )


def rows(trail: Trail) -> Trail:
    """A trail [seeds, worlds, ...] as a `Vector` has it, [N, ...]."""
    return Trail(*(np.asarray(x).reshape(-1, *x.shape[2:]) for x in trail))


def hash_seed(*numbers: int) -> int:
    """A seed for an environment from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def policy(act: Callable[..., Any], start: Any = ()) -> Callable[..., tuple[jax.Array, Any]]:
    """Compiled: parameters [S, ...], keys [S], t, observations [S, W, O], memories [S, W, ...] ->
    actions [S, W, ...], memories. `start` is a memory before an episode."""
    recall = with_memory(act, start)

    def act_in_worlds(
        params: Any, key: jax.Array, t: jax.Array, observations: jax.Array, before: Any
    ) -> tuple[jax.Array, Any]:
        keys = jax.random.split(jax.random.fold_in(key, t), len(observations))
        return jax.vmap(recall, (0, None, 0, 0))(keys, params, observations, before)

    return jax.jit(jax.vmap(act_in_worlds, (0, 0, None, 0, 0)))


def carry_memory(step: Callable[..., tuple[Any, Any]], memory: Any) -> Callable[..., Any]:
    """`step` without its memory: each call takes the one that the call before returned.

    Args:
      step: ..., memory -> a result, memory.
      memory: of the first call.
    """

    def act(*args: Any) -> Any:
        nonlocal memory
        result, memory = step(*args, memory)
        return result

    return act


def evaluation(
    best: Callable[..., Any], env: Environment, seeds: Sequence[int], episodes: int, start: Any = ()
) -> Callable[[Any, jax.Array, int], tuple[np.ndarray, np.ndarray]]:
    """parameters [S, ...], keys [S], step -> mean returns and costs of whole episodes, [S] each.

    `start` is what the policy remembers before an episode.
    """
    sees = policy(best, start)

    def measure(params: Any, keys: jax.Array, step: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = [hash_seed(seed, i, step, 1) for seed in seeds for i in range(episodes)]
        shape = (len(seeds), episodes)
        act = carry_memory(functools.partial(sees, params, keys), memories(start, *shape))
        totals = play(env, act, numbers, shape)
        return totals[0].mean(axis=1), totals[1].mean(axis=1)

    return measure


def play(
    env: Environment, act: Callable[[int, np.ndarray], Any], seeds: Sequence[int],
    shape: tuple[int, ...], frames: list[np.ndarray] | None = None,
) -> np.ndarray:  # fmt: skip
    """Returns and costs [2, *shape] of one whole episode of each copy.

    Args:
      env: on the host.
      act: t, observations [*shape, O] -> actions [*shape, ...].
      seeds: of the copies.
      shape: whose product is the number of copies.
      frames: takes pictures of the first copy's episode, where it is given.
    """
    assert env.host is not None
    vector = env.host(seeds)
    totals, alive, t = np.zeros((2, len(seeds))), np.ones(len(seeds), bool), 0
    while alive.any():
        actions = np.asarray(act(t, vector.observations.reshape(*shape, -1)))
        if frames is not None and alive[0]:
            frames.append(vector.render())
        steps, costs = vector.step(actions.reshape(len(seeds), *actions.shape[len(shape) :]))
        totals += np.where(alive, np.stack([steps.rewards, costs]), 0.0)
        alive &= steps.ends == 0
        t += 1
    vector.close()
    return totals.reshape(2, *shape)
