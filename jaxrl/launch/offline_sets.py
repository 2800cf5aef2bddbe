"""Offline data sets made from policies of our own: tiers of skill on any task, walks in a maze."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control import rollout, train
from jaxrl.control.algorithms.online import sac
from jaxrl.control.environment import Environment, random_action
from jaxrl.control.environments import maze
from jaxrl.data.offline import statistics, transitions
from jaxrl.data.offline.transitions import Transitions


class Sets(NamedTuple):
    """Data sets of one environment by name, and what their scores are relative to."""

    sets: dict[str, Transitions]
    bounds: statistics.Bounds


TIERS = ("random", "medium", "medium_replay", "expert", "medium_expert")


def tiers(env: Environment, *, steps: int = 6000, size: int = 5000, seed: int = 0) -> Sets:
    """The tiers of D4RL from one SAC run.

    `medium` is the policy at the first point that is 40% of the way from random to the run's best;
    `medium_replay` is all that was in the replay buffer then; `medium_expert` is half and half.

    Args:
      env: with continuous actions.
      steps: of the SAC run.
      size: steps of each set, `medium_replay` excepted.
      seed: of all draws.
    """
    config = sac.Config(steps=steps, warmup=500)
    programs = sac.programs(env, config)
    points = list(train.train(programs, env, seeds=[seed], points=20, episodes=32))
    key = jax.random.PRNGKey(seed)

    def uniform(key: jax.Array, params: Any, observation: Any) -> jax.Array:
        return random_action(key, env.space)

    returns = jax.jit(lambda k: rollout.evaluate(env, uniform, None, k, episodes=128).returns)(key)
    bounds = statistics.Bounds(float(returns.mean()), max(float(p.returns[0]) for p in points))
    scores = [statistics.normalised_score(p.returns[0], bounds) for p in points]
    medium = next(i for i, score in enumerate(scores) if score >= 40.0)
    expert = int(np.argmax(scores))

    def gather(point: train.Point) -> Transitions:
        params = jax.tree.map(lambda x: x[0], point.carry.learner.params)
        return rollout.gather(env, programs[0].algorithm.act, params, key, steps=size)

    ring = points[-1].carry.replay.data
    filled = config.warmup + points[medium].step
    sets = {
        "random": rollout.gather(env, uniform, None, key, steps=size),
        "medium": gather(points[medium]),
        "medium_replay": transitions.check(jax.tree.map(lambda x: np.array(x[0, :filled]), ring)),
        "expert": gather(points[expert]),
    }
    pair = [sets["medium"], sets["expert"]]
    sets["medium_expert"] = transitions.mix(pair, (1.0, 1.0), size, seed)
    return Sets(sets, bounds)


def walks(
    layout: str = "u", *, steps: int = 10_000, length: int = 5, noise: float = 0.5, seed: int = 0
) -> Sets:
    """Walks of about two cells in a maze, each towards some cell, from anywhere.

    A longer way must be stitched from several.

    Args:
      layout: of `maze.LAYOUTS`.
      steps: of all walks together.
      length: steps of one.
      noise: of the walkers' actions.
      seed: of all draws.
    """
    env = maze.make(layout, anywhere=True, horizon=length)

    def act(key: jax.Array, table: jax.Array, observation: jax.Array) -> jax.Array:
        cell = jnp.round((observation + 1.0) * (len(table) - 1) / 2.0).astype(jnp.int32)
        towards = table[cell[0], cell[1]]
        return jnp.clip(towards + noise * jax.random.normal(key, (2,)), -1.0, 1.0)

    cells = maze.free_cells(layout)
    parts = [
        rollout.gather(
            env, act, jnp.asarray(maze.compass(layout, cell)),
            jax.random.PRNGKey(seed + i), steps=-(-steps // len(cells)),
        )
        for i, cell in enumerate(cells)
    ]  # fmt: skip
    return Sets({"walks": transitions.concatenate(parts)}, statistics.Bounds(0.0, 1.0))
