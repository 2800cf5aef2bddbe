"""Environments of Gymnasium, stepped by Python around compiled halves of a phase.

One vector holds the worlds of all seeds. A step of all of them is one call of the policy, one of
the vector and one that puts the steps into the replay buffers; the updates are one call more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control import spaces
from jaxrl.control.environment import Environment
from jaxrl.control.program import Carry, Program, split
from jaxrl.control.rollout import Act
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

    sizes = spaces.space_of(*layouts.values(), repr(name))
    vector = lambda seeds: Vector(limited, layouts, seeds)  # noqa: E731
    return Environment(name, sizes, int(limit or horizon), refuse, refuse, vector, layouts)


class Vector:
    """Copies of an environment, stepped together; where an episode ends, a fresh one begins."""

    def __init__(
        self, make: Callable[[], Any], layouts: Mapping[str, spaces.Layout], seeds: Sequence[int]
    ) -> None:
        """Make and reset a copy for each of `seeds`."""
        import gymnasium

        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        self._copies = gymnasium.vector.SyncVectorEnv([make] * len(seeds), autoreset_mode=mode)
        self._layouts = layouts
        seeds = [int(seed) for seed in seeds]
        self.observations = self._flatten(self._copies.reset(seed=seeds)[0])
        """[N, O] float32."""
        self.clock = np.zeros(len(seeds), np.int32)
        """[N]: steps since the reset."""

    def step(self, actions: np.ndarray) -> tuple[Transitions, np.ndarray]:
        """Take `actions`, [N, A] in [-1, 1] or [N]; the steps [N, ...], and their costs [N]."""
        played = spaces.to_environment(self._layouts["action"], actions)
        after, rewards, terminals, cut, infos = self._copies.step(played)
        before, self.observations = self.observations, self._flatten(after)
        following, ends = self.observations.copy(), terminals | cut
        for i in np.flatnonzero(ends):
            following[i] = self._flatten_one(infos["final_obs"][i])
        self.clock = np.where(ends, 0, self.clock + 1)
        flags = [np.asarray(x, np.float32) for x in (rewards, terminals, ends)]
        steps = Transitions(before, actions, flags[0], following, flags[1], flags[2])
        costs = np.broadcast_to(np.asarray(infos.get("cost", 0.0), np.float32), rewards.shape)
        return steps, costs

    def render(self) -> np.ndarray:
        """A picture [H, W, 3] uint8 of the first copy."""
        return np.asarray(self._copies.envs[0].render())

    def close(self) -> None:
        """Close the copies."""
        self._copies.close()

    def _flatten(self, observations: Any) -> np.ndarray:
        return spaces.flatten(self._layouts["observation"], observations)

    def _flatten_one(self, observation: Any) -> np.ndarray:
        return self._flatten(jax.tree.map(lambda x: np.asarray(x)[None], observation))[0]


def advance(
    program: Program, env: Environment, seeds: Sequence[int]
) -> Callable[[Carry, Any, int], tuple[Carry, Any]]:
    """carries, data, length -> the carries after as many steps of `program`, and mean metrics.

    The worlds live as long as the function; the first call after the start of a phase takes the
    steps that precede its first update, and a run that continues plays fresh episodes.
    """
    parts = program.play
    worlds, count = parts.worlds, len(seeds)
    vectors: list[Vector] = []
    fresh = jax.jit(jax.vmap(parts.absorb))
    # not the first of a call: what it was given may be a point that is still read
    again = jax.jit(jax.vmap(parts.absorb), donate_argnums=0)
    learn = jax.jit(jax.vmap(parts.learn, (0, 0, None)))
    policies = [_policy(act) for act in (parts.warm, program.algorithm.act)]
    keys_of = jax.jit(jax.vmap(lambda carry: split(carry, 2)))

    def move(act: Any, carry: Carry, keys: jax.Array, steps: int) -> Carry:
        vector = vectors[0]
        for t in range(steps):
            observations = vector.observations.reshape(count, worlds, -1)
            actions = np.asarray(act(carry.learner.params, keys, t, observations))
            clock = vector.clock.reshape(count, worlds)
            played, _ = vector.step(actions.reshape(count * worlds, *actions.shape[2:]))
            rows = jax.tree.map(lambda x: x.reshape(count, worlds, *x.shape[1:]), played)
            carry = (again if t else fresh)(carry, clock, rows)
        return carry

    def run(carry: Carry, data: Any, length: int) -> tuple[Carry, Any]:
        begins = not vectors and bool(np.all(np.asarray(carry.replay.count) == 0))
        if not vectors:
            steps = int(np.max(np.asarray(carry.replay.count)))
            numbers = [hash_seed(seed, w, steps, 0) for seed in seeds for w in range(worlds)]
            vectors.append(env.host(numbers))
        totals = None
        if begins and parts.warmup:
            key, moving, _ = keys_of(carry)
            carry = move(policies[0], carry._replace(key=key), moving, parts.warmup)
        for _ in range(length):
            key, moving, learning = keys_of(carry)
            carry = move(policies[1], carry._replace(key=key), moving, parts.segment)
            carry, metrics = learn(carry, learning, data)
            totals = metrics if totals is None else jax.tree.map(jnp.add, totals, metrics)
        return carry, jax.tree.map(lambda x: x / length, totals)

    return run


def hash_seed(*numbers: int) -> int:
    """A seed for an environment from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def _policy(act: Act) -> Callable[..., jax.Array]:
    """Compiled: parameters [S, ...], keys [S], t, observations [S, W, O] -> actions [S, W, ...]."""

    def act_in_worlds(
        params: Any, key: jax.Array, t: jax.Array, observations: jax.Array
    ) -> jax.Array:
        keys = jax.random.split(jax.random.fold_in(key, t), len(observations))
        return jax.vmap(act, (0, None, 0))(keys, params, observations)

    return jax.jit(jax.vmap(act_in_worlds, (0, 0, None, 0)))


def evaluation(
    best: Act, env: Environment, seeds: Sequence[int], episodes: int
) -> Callable[[Any, jax.Array, int], tuple[np.ndarray, np.ndarray]]:
    """parameters [S, ...], keys [S], step -> mean returns and costs of whole episodes, [S] each."""
    policy = _policy(best)

    def measure(params: Any, keys: jax.Array, step: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = [hash_seed(seed, i, step, 1) for seed in seeds for i in range(episodes)]
        act = lambda t, observations: policy(params, keys, t, observations)  # noqa: E731
        totals = play(env, act, numbers, (len(seeds), episodes))
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
