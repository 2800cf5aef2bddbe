"""Mazes drawn in text, solved by a string of moves."""

from __future__ import annotations

import random
import re
from collections import deque

from jaxrl.data.sources import extract, generate
from jaxrl.data.types import Problem, Score, Task

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def task(
    size: int = 3,
    loops: int = 1,
    shortest: bool = False,
    ood_size: int | None = None,
    answer_format: str = "tags",
    template: str = "",
) -> Task:
    """Maze problems: `#` is wall, S the start, G the goal.

    Args:
      size: rooms along a side in train and test; the drawing has 2 size + 1 rows.
      loops: walls taken out of a tree-shaped maze, so that more than one path may lead to G.
      shortest: only a shortest solution is right.
      ood_size: rooms along a side in the ood split; None means one more than `size`.
      answer_format: see `jaxrl.data.sources.extract`.
      template: prompt with `{question}` in it; empty asks for the answer format.
    """
    ood_size = size + 1 if ood_size is None else ood_size
    if not 2 <= size < ood_size <= 50:
        raise ValueError(f"size={size}, ood_size={ood_size}: need 2 <= size < ood_size <= 50")
    if loops < 0:
        raise ValueError(f"loops={loops} must be 0 or more")
    find = extract.extractor(answer_format)
    template = template or extract.INSTRUCTIONS[answer_format]

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        drawing = generate.draw(
            lambda stream: carve(stream, ood_size if split == "ood" else size, loops),
            key=str,
            stream=generate.rng("maze", split, seed, index),
            split=split,
        )
        moves = solve(drawing)
        question = (
            f"{drawing}\nMove from S to G without entering #. Give "
            f"{'a shortest list of' if shortest else 'the'} moves as letters from U D L R."
        )
        prompt = extract.fill(template, question)
        return generate.user_problem(
            "maze", drawing, prompt, len(moves), maze=drawing, solution=moves
        )

    def reward(problem: Problem, completion: str) -> Score:
        answer = find(completion) or ""
        moves = re.sub(r"[\s,>→-]", "", answer).rstrip(".").upper()
        arrived = len(moves) <= 10_000 and walk(problem.metadata["maze"], moves)
        correct = arrived and (not shortest or len(moves) == problem.answer)
        return Score(float(correct), {"correct": float(correct), "arrived": float(arrived)})

    task = Task(
        name="maze",
        problem=problem,
        reward=reward,
        gold=lambda problem: extract.write_answer(answer_format, problem.metadata["solution"]),
        alphabet=generate.ASCII,
        description=__doc__,
        pure=True,
    )
    return task


def carve(stream: random.Random, size: int, loops: int) -> str:
    """A random maze by depth-first search, then `loops` more openings."""
    grid = [["#"] * (2 * size + 1) for _ in range(2 * size + 1)]
    path = [(stream.randrange(size), stream.randrange(size))]
    grid[2 * path[0][0] + 1][2 * path[0][1] + 1] = "."
    while path:
        y, x = path[-1]
        closed = [
            (y + dy, x + dx)
            for dy, dx in MOVES.values()
            if 0 <= y + dy < size and 0 <= x + dx < size
            if grid[2 * (y + dy) + 1][2 * (x + dx) + 1] == "#"
        ]
        if not closed:
            path.pop()
            continue
        room = stream.choice(closed)
        grid[y + room[0] + 1][x + room[1] + 1] = grid[2 * room[0] + 1][2 * room[1] + 1] = "."
        path.append(room)
    walls = [
        (y, x)
        for y in range(1, 2 * size)
        for x in range(1, 2 * size)
        if (y + x) % 2 and grid[y][x] == "#"
    ]
    for y, x in stream.sample(walls, min(loops, len(walls))):
        grid[y][x] = "."
    rooms = [(2 * y + 1, 2 * x + 1) for y in range(size) for x in range(size)]
    for letter, (y, x) in zip("SG", stream.sample(rooms, 2), strict=True):
        grid[y][x] = letter
    return "\n".join(map("".join, grid))


def solve(maze: str) -> str:
    """A shortest string of moves, by breadth-first search."""
    rows = maze.split("\n")
    start, goal = find(maze, "S"), find(maze, "G")
    queue, visited_cells = deque([(start, "")]), {start}
    while queue:
        (y, x), moves = queue.popleft()
        if (y, x) == goal:
            return moves
        for letter, (dy, dx) in MOVES.items():
            at = (y + dy, x + dx)
            if rows[at[0]][at[1]] != "#" and at not in visited_cells:
                visited_cells.add(at)
                queue.append((at, moves + letter))
    raise ValueError("the maze has no solution")


def walk(maze: str, moves: str) -> bool:
    """Whether the moves, none of them into a wall, end at the goal."""
    rows = maze.split("\n")
    y, x = find(maze, "S")
    for letter in moves:
        if letter not in MOVES:
            return False
        y, x = y + MOVES[letter][0], x + MOVES[letter][1]
        if rows[y][x] == "#":
            return False
    return rows[y][x] == "G"


def find(maze: str, letter: str) -> tuple[int, int]:
    """Row and column of a letter."""
    rows = maze.split("\n")
    return next((y, row.index(letter)) for y, row in enumerate(rows) if letter in row)
