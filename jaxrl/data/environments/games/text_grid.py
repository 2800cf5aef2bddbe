"""A grid with walls, in text: walk to the goal, one step a turn."""

from __future__ import annotations

import dataclasses
import random

from jaxrl.data.environments import Environment, Opening, Reply, unscored
from jaxrl.data.sources import extract, generate
from jaxrl.data.tasks.logic import maze
from jaxrl.data.types import Problem, Task

VIEWS = ("map", "near")


@dataclasses.dataclass
class _Walk:
    drawing: str
    """With a border of walls, as of `jaxrl.data.tasks.logic.maze`; S is where the walk began."""
    place: tuple[int, int]
    goal: tuple[int, int]
    left: int
    """Turns that are left."""
    view: str
    cost: float
    think: bool
    turns: int = 0
    thoughts: int = 0
    """Turns that began with `places`."""

    def places(self) -> str:
        """Row and column of the walker and of the goal, from 1, such as `21>43`."""
        return "{}{}>{}{}".format(*self.place, *self.goal)

    def ahead(self, move: str) -> tuple[int, int]:
        """Where a move leads to: the place itself where a wall is in the way."""
        (y, x), (dy, dx) = self.place, maze.MOVES[move]
        row = self.drawing.split("\n")[y + dy]
        return self.place if row[x + dx] == "#" else (y + dy, x + dx)

    def seen(self) -> str:
        """What the policy reads."""
        if self.view == "near":
            return self.places() + "".join("#."[self.ahead(m) != self.place] for m in maze.MOVES)
        rows = [list(row[1:-1]) for row in self.drawing.replace("S", ".").split("\n")[1:-1]]
        rows[self.place[0] - 1][self.place[1] - 1] = "@"
        return "\n".join(map("".join, rows))


def task(
    size: int = 4,
    walls: int = 4,
    turns: int = 0,
    ood_size: int | None = None,
    view: str = "map",
    cost: float = 0.0,
    think: bool = False,
) -> Task:
    """Grids of which each problem has one of its own.

    A turn is a letter, U, D, L or R; where a wall is in the way, nothing moves. Reaching the goal
    earns 1. No grid of the test split has its walls where one of the train split has them.

    Args:
      size: cells along a side in train and test.
      walls: cells that are walls.
      turns: the most that an episode may have; 0: two for each cell along a side. Every goal can be
        reached in as many.
      ood_size: cells along a side in the ood split; None means one more than `size`.
      view: what is seen in each turn. map: the grid, where @ is the walker, G the goal and # a
        wall; near: places and what is next to the walker, as `21>43#..#`: row 2, column 1, the goal
        in row 4, column 3, and walls above and on the right.
      cost: of every turn that does not reach the goal.
      think: the move is the last letter of a turn, and anything may be before it; solutions have
        the places of walker and goal before each move, as `21>43D`.
    """
    ood_size = size + 1 if ood_size is None else ood_size
    if not 2 <= size < ood_size <= 9:
        raise ValueError(f"size={size}, ood_size={ood_size}: need 2 <= size < ood_size <= 9")
    if not 1 <= walls <= size**2 // 2:
        raise ValueError(f"walls={walls} must be from 1 to half of the {size**2} cells")
    if turns and turns < 2 * size - 2:
        raise ValueError(f"turns={turns} must be 0 (chosen by the size) or at least 2 size - 2")
    if view not in VIEWS:
        raise ValueError(f"view={view!r}: choose one of {', '.join(VIEWS)}")
    if cost < 0:
        raise ValueError(f"cost={cost} must be 0 or more")

    def problem(split: str, seed: int, index: int) -> Problem:
        task.check_split(split)
        side = ood_size if split == "ood" else size
        limit = turns or 2 * side
        drawing = generate.draw(
            lambda stream: draw_grid(stream, side, walls, limit),
            key=lambda drawing: drawing.replace("S", ".").replace("G", "."),
            stream=generate.rng("text_grid", split, seed, index),
            split=split,
        )
        prompt = _begun(drawing, limit).seen()
        return generate.user_problem("text_grid", drawing, prompt, drawing, turns=limit)

    def _begun(drawing: str, limit: int) -> _Walk:
        places = (maze.find(drawing, letter) for letter in "SG")
        return _Walk(drawing, *places, limit, view, cost, think)

    def begin(problem: Problem, seed: int) -> tuple[_Walk, Opening]:
        walk = _begun(problem.answer, problem.metadata["turns"])
        return walk, Opening(({"role": "user", "content": walk.seen()},))

    def gold(problem: Problem, seed: int) -> tuple[str, ...]:
        walk, actions = _begun(problem.answer, 0), []
        for move in maze.solve(problem.answer):
            actions.append(walk.places() * think + move)
            walk.place = walk.ahead(move)
        return tuple(actions)

    task = Task(
        name="text_grid",
        problem=problem,
        reward=unscored,
        alphabet="UDLR@G#.>123456789\n",
        description=__doc__,
        pure=True,
        turns=Environment(begin, step, gold=gold),
    )
    return task


def draw_grid(stream: random.Random, size: int, walls: int, longest: int) -> str:
    """A grid with a border of walls, whose goal is at most `longest` moves away."""
    while True:
        cells = ["."] * size**2
        start, goal, *rest = stream.sample(range(size**2), walls + 2)
        cells[start], cells[goal] = "SG"
        for at in rest:
            cells[at] = "#"
        inner = ["".join(cells[i : i + size]) for i in range(0, size**2, size)]
        edge = "#" * (size + 2)
        drawing = "\n".join([edge, *(f"#{row}#" for row in inner), edge])
        try:
            if len(maze.solve(drawing)) <= longest:
                return drawing
        except ValueError:  # no way leads to the goal
            continue


def step(walk: _Walk, action: str) -> Reply:
    """One move."""
    text = extract.spoken(action).strip()
    move = text[-1:] if walk.think else text
    walk.turns += 1
    walk.left -= 1
    walk.thoughts += text[:-1] == walk.places()
    if move in maze.MOVES:
        walk.place = walk.ahead(move)
    reached = walk.place == walk.goal
    parts = {"reached": float(reached), "moves": float(walk.turns)}
    if walk.think:
        parts["thoughts"] = walk.thoughts / walk.turns
    reward = 1.0 if reached else -walk.cost
    if reached or not walk.left:
        return Reply(reward=reward, parts=parts, done=True)
    return Reply(({"role": "user", "content": walk.seen()},), reward, parts)
