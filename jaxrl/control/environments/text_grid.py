"""The grids of the task `text_grid`, seen as features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control.environment import Environment, Space, Step
from jaxrl.data import tasks
from jaxrl.data.tasks.logic.maze import MOVES


def make(
    split: str = "train", seed: int = 0, grids: int = 4096, cost: float = 0.0, **params: Any
) -> Environment:
    """Grids of n by n cells, which are the task's problems, with the same moves and rewards.

    An action is a place in `MOVES`: up, down, left, right. Reaching the goal earns 1 and ends the
    episode. Seen are the cells that are walls, the walker's and the goal's, one hot and flat,
    [3 n^2].

    Args:
      split: of the problems; not ood, whose grids are of another size.
      seed: of the problems.
      grids: how many problems there are; an episode is one of them, drawn at random.
      cost: of the task.
      params: others of the task, such as `size`; how a grid is seen and `think` change nothing.

    Raises:
      ValueError: the split is ood, or there is no grid.
    """
    if split == "ood" or grids < 1:
        raise ValueError(f"split={split!r}, grids={grids}: need train or test, and 1 grid or more")
    task = tasks.get("text_grid", cost=cost, **params)
    problems = [task.problem(split, seed, index) for index in range(grids)]
    letters = np.array([[list(row) for row in problem.answer.split("\n")] for problem in problems])
    all_cells = jnp.asarray(np.stack([letters == letter for letter in "#SG"], axis=-1))
    moves = jnp.asarray(list(MOVES.values()))
    space = Space(3 * (letters.shape[1] - 2) ** 2, len(MOVES), discrete=True)

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        cells = all_cells[jax.random.randint(key, (), 0, grids)]
        return cells, observed(cells)

    def step(key: jax.Array, cells: jax.Array, action: jax.Array) -> Step:
        walls, walker, goal = jnp.moveaxis(cells, -1, 0)
        moved = jnp.roll(walker, moves[action], axis=(0, 1))
        walker = jnp.where(jnp.any(moved & walls), walker, moved)
        reached = jnp.any(walker & goal)
        after = jnp.stack([walls, walker, goal], axis=-1)
        return Step(after, observed(after), jnp.where(reached, 1.0, -cost), reached)

    return Environment("text_grid", space, problems[0].metadata["turns"], reset, step)


def observed(cells: jax.Array) -> jax.Array:
    """What is seen, [3 n^2] float32.

    Args:
      cells: [n + 2, n + 2, 3] bool, the border included: is a wall, is the walker's, is the goal.
    """
    return cells[1:-1, 1:-1].reshape(-1).astype(jnp.float32)
