"""Gymnasium on the host: a vector of its environments, and off-policy training around it.

For what no JAX environment offers. Each step crosses to the host and back, one seed at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control import program, replay
from jaxrl.control.algorithm import Algorithm
from jaxrl.control.environment import Space, random_action
from jaxrl.data.offline.transitions import Transitions, from_unit_box
from jaxrl.types import TrainState


class Vector:
    """`worlds` copies of a Gymnasium environment, stepped together, with actions in [-1, 1]^A."""

    def __init__(self, name: str, worlds: int, seed: int, **kwargs: Any) -> None:
        """Make and reset them; needs the extra `control`."""
        import gymnasium

        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self._envs = gymnasium.make_vec(
            name, worlds, vectorization_mode="sync", vector_kwargs=same_step, **kwargs
        )
        actions = self._envs.single_action_space
        _check_actions(actions, name)
        states = self._envs.single_observation_space
        self._states = None
        """Numbers of states, which are shown as one-hot vectors; None: observations are arrays."""
        if isinstance(states, gymnasium.spaces.Discrete):
            self._states = np.arange(int(states.start), int(states.start) + int(states.n))
        elif not isinstance(states, gymnasium.spaces.Box):
            raise ValueError(
                f"environment {name!r} has observations {states}; arrays (Box) and numbers of "
                "states (Discrete) are read, so flatten them with "
                "gymnasium.wrappers.FlattenObservation"
            )
        discrete = isinstance(actions, gymnasium.spaces.Discrete)
        size = int(actions.n) if discrete else int(np.prod(actions.shape))
        self.observations = self._seen(self._envs.reset(seed=seed)[0])
        """[worlds, O] float32."""
        self.space = Space(self.observations.shape[1], size, discrete)

    def step(self, actions: np.ndarray) -> Transitions:
        """Take `actions`, [worlds, A] or [worlds]; where an episode ends, a fresh one begins."""
        if self.space.discrete:
            given = actions + int(self._envs.single_action_space.start)
        else:
            box = self._envs.single_action_space
            wide = actions.reshape(-1, *box.shape)
            given = from_unit_box(wide, box.low, box.high).astype(box.dtype)
        seen, rewards, terminals, cut, infos = self._envs.step(given)
        before, self.observations = self.observations, self._seen(seen)
        following, ends = self.observations.copy(), terminals | cut
        for i in np.flatnonzero(ends):
            following[i] = self._seen(np.asarray(infos["final_obs"][i])[None])[0]
        rewards = np.asarray(rewards, np.float32)
        flags = (np.asarray(x, np.float32) for x in (terminals, ends))
        return Transitions(before, actions, rewards, following, *flags)

    def close(self) -> None:
        """Close the copies."""
        self._envs.close()

    def _seen(self, observations: np.ndarray) -> np.ndarray:
        if self._states is not None:
            return (np.asarray(observations)[:, None] == self._states).astype(np.float32)
        return np.asarray(observations, np.float32).reshape(len(observations), -1)


def _check_actions(space: Any, name: str) -> None:
    """Refuse a space of actions that a policy cannot play.

    Raises:
      ValueError: naming the space and the way out.
    """
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(
            f"environment {name!r} has actions {space}; Discrete and Box are played, so wrap it "
            "(gymnasium.wrappers.TransformAction) to one of them"
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(
            f"environment {name!r} has actions {space} without bounds; give it finite ones with "
            "gymnasium.wrappers.RescaleAction or a wrapper of your own"
        )


class Progress(NamedTuple):
    """Progress of training on the host."""

    env_steps: int
    episode_returns: list[float]
    """Of the episodes that ended since the last, exploration included."""
    learner: TrainState


def train(
    algorithm: Algorithm,
    vector: Vector,
    *,
    steps: int,
    seed: int = 0,
    warmup: int = 1000,
    every: int = 1000,
) -> Iterator[Progress]:
    """Off-policy training: one step of all worlds, one update.

    Args:
      algorithm: made for `vector.space`.
      vector: where.
      steps: of all worlds together, the warm-up, which plays uniform actions, included.
      seed: of all draws.
      warmup: steps before the first update.
      every: steps between what is yielded.
    """
    worlds = len(vector.observations)
    key, init_key = jax.random.split(jax.random.PRNGKey(seed))
    learner = algorithm.init(init_key)
    act = jax.jit(jax.vmap(algorithm.act, (0, None, 0)))
    explore = jax.jit(jax.vmap(lambda k: random_action(k, vector.space)))
    add = jax.jit(replay.add, donate_argnums=0)

    @jax.jit
    def learn(key: jax.Array, learner: TrainState, ring: replay.Replay) -> TrainState:
        batch_key, update = jax.random.split(key)
        batch = program.draw(algorithm, batch_key, ring=ring)
        return algorithm.update(update, learner, batch)[0]

    ring, running, finished = None, np.zeros(worlds), []
    for done in range(worlds, steps + worlds, worlds):
        key, act_key, learn_key = jax.random.split(key, 3)
        keys = jax.random.split(act_key, worlds)
        warm = done <= warmup
        actions = explore(keys) if warm else act(keys, learner.params, vector.observations)
        played = vector.step(np.asarray(actions))
        if ring is None:
            example = jax.tree.map(lambda x: jnp.asarray(x[0]), played)
            ring = replay.empty(example, -(-steps // worlds) * worlds)
        ring = add(ring, played)
        if not warm:
            learner = learn(learn_key, learner, ring)
        running += played.rewards
        for i in np.flatnonzero(played.ends):
            finished.append(float(running[i]))
            running[i] = 0.0
        if done % every < worlds or done >= steps:
            yield Progress(done, finished, learner)
            finished = []
