"""Mazes: a point walks around walls to a goal cell; a reward of 1 there and nothing before."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.control.environment import Environment, Space, Step

LAYOUTS = {
    "u": ("#####", "#S..#", "###.#", "#G..#", "#####"),
    "medium": ("#######", "#S.#..#", "#..#..#", "#.....#", "##.##.#", "#..#.G#", "#######"),
    "rooms": ("#########", "#S..#...#", "#.......#", "#...#...#", "##.###.##",
              "#...#...#", "#.......#", "#...#..G#", "#########"),
}  # fmt: skip
"""`#` a wall, `S` where episodes start, `G` the goal."""


def make(layout: str = "u", *, anywhere: bool = False, horizon: int = 60) -> Environment:
    """A walk of at most 0.4 cells a step in each direction; what is seen is the place in [-1, 1]^2.

    Args:
      layout: of `LAYOUTS`.
      anywhere: start in any free cell, not at `S`; for gathering data that covers the maze.
      horizon: steps.

    Raises:
      ValueError: no such layout.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; choose one of {sorted(LAYOUTS)}")
    grid = np.array([list(row) for row in LAYOUTS[layout]])
    walls, size = jnp.asarray(grid == "#"), len(grid)
    starts = jnp.asarray(np.argwhere(grid != "#" if anywhere else grid == "S"))
    goal = jnp.asarray(np.argwhere(grid == "G")[0])

    def observe(place: jax.Array) -> jax.Array:
        return 2.0 * place / (size - 1) - 1.0

    def blocked(place: jax.Array) -> jax.Array:
        row, column = jnp.round(place).astype(jnp.int32)
        return walls[row, column]

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        which, where = jax.random.split(key)
        cell = starts[jax.random.randint(which, (), 0, len(starts))]
        place = cell + jax.random.uniform(where, (2,), minval=-0.3, maxval=0.3)
        return place, observe(place)

    def step(key: jax.Array, place: jax.Array, action: jax.Array) -> Step:
        move = 0.4 * jnp.clip(action, -1.0, 1.0)
        down = place.at[0].add(move[0])
        place = jnp.where(blocked(down), place, down)
        across = place.at[1].add(move[1])
        place = jnp.where(blocked(across), place, across)
        at_goal = jnp.all(jnp.round(place).astype(jnp.int32) == goal)
        return Step(place, observe(place), at_goal.astype(jnp.float32), at_goal)

    return Environment(f"maze_{layout}", Space(2, 2), horizon, reset, step)


def free_cells(layout: str) -> list[tuple[int, int]]:
    """The cells without a wall, by row and column."""
    grid = LAYOUTS[layout]
    return [(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell != "#"]


def _outwards(layout: str, goal: tuple[int, int]) -> list[tuple]:
    """Each cell that reaches `goal`, nearest first: the cell, the step to take, steps to go."""
    free = set(free_cells(layout))
    cells, visited = [(goal, (0, 0), 0)], {goal}
    for (row, column), _, far in cells:
        for down, across in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            cell = (row - down, column - across)
            if cell in free - visited:
                cells.append((cell, (down, across), far + 1))
                visited.add(cell)
    return cells


def compass(layout: str, goal: tuple[int, int]) -> np.ndarray:
    """From each cell the step of a shortest path to `goal`, [rows, columns, 2] float32."""
    table = np.zeros((len(LAYOUTS[layout]), len(LAYOUTS[layout][0]), 2), np.float32)
    for cell, step, _ in _outwards(layout, goal):
        table[cell] = step
    return table


def steps_to_goal(layout: str) -> np.ndarray:
    """Cells to go to the goal, [rows, columns] float32; at walls, more than from anywhere."""
    grid = LAYOUTS[layout]
    goal = next((r, row.index("G")) for r, row in enumerate(grid) if "G" in row)
    cells = _outwards(layout, goal)
    table = np.full((len(grid), len(grid[0])), cells[-1][2] + 1.0, np.float32)
    for cell, _, far in cells:
        table[cell] = far
    return table
