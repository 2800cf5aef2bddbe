"""The grid in text: what is seen of it, where moves lead, and players of it."""

import random

import numpy as np
import pytest

from jaxrl.data import tasks
from jaxrl.data.environments.games import text_grid
from jaxrl.data.tasks.logic import maze
from jaxrl.data.types import Problem
from jaxrl.launch import recipes
from jaxrl.launch.recipes.game_agents import lmrl_gym_maze

DRAWING = "#####\n#S.##\n#.G.#\n#...#\n#####"


def walked(drawing, *moves, turns=9, **params):
    """What is seen at first, and the replies to moves."""
    task = tasks.get("text_grid", size=3, **{"walls": 1} | params)
    problem = Problem("p", "", drawing, metadata={"turns": turns})
    state, opening = task.turns.begin(problem, 0)
    return opening.messages[0]["content"], [task.turns.step(state, move) for move in moves]


def test_walls_stop_a_walk_and_the_goal_ends_it():
    seen, (wall, blocked, down, end) = walked(DRAWING, "U", "?", "D", "R", cost=0.25)
    assert seen == "@.#\n.G.\n..." == wall.messages[0]["content"] == blocked.messages[0]["content"]
    assert down.messages[0]["content"] == "..#\n@G.\n..." and down.reward == -0.25
    assert end.done and end.reward == 1 and end.parts == {"reached": 1, "moves": 4}
    seen, (right, _, over) = walked(DRAWING, "R", "UU", "R", turns=3, view="near")
    assert seen == "11>22#.#." and right.messages[0]["content"] == "12>22#..#"
    assert over.done and over.reward == 0 and over.parts["reached"] == 0  # a wall again


def test_a_thought_changes_nothing_and_is_judged_by_the_places():
    _, (told, lied, end) = walked(DRAWING, "11>22D", "33>33L", "21>22R", think=True)
    assert told.messages[0]["content"] == lied.messages[0]["content"] == "..#\n@G.\n..."
    assert end.reward == 1 and end.parts == {"reached": 1, "moves": 3, "thoughts": 2 / 3}
    assert not walked(DRAWING, "11>22D", "21>22R")[1][-1].done  # no thoughts are asked for


@pytest.mark.parametrize("params", [{}, {"view": "near"}, {"think": True, "size": 5, "walls": 6}])
def test_solutions_are_shortest_and_reach_the_goal_in_time(params):
    task = tasks.get("text_grid", **params)
    for split in task.splits:
        for index in range(8):
            problem = task.problem(split, 0, index)
            said = task.turns.gold(problem, 0)
            assert "".join(each[-1] for each in said) == maze.solve(problem.answer)
            state, opening = task.turns.begin(problem, 0)
            assert opening.messages[0]["content"] == problem.prompt
            replies = [task.turns.step(state, each) for each in said]
            assert replies[-1].reward == 1 and len(said) <= problem.metadata["turns"]
            assert replies[-1].parts.get("thoughts", 1) == 1
            shown = problem.prompt + "".join(said)
            assert set(shown) <= set(task.alphabet)


def test_walls_of_held_out_grids_are_never_trained_on():
    task = tasks.get("text_grid")
    walls = {
        split: {
            task.problem(split, seed, i).answer.translate(str.maketrans("SG", ".."))
            for seed in (0, 1)
            for i in range(400)
        }
        for split in ("train", "test")
    }
    assert not walls["train"] & walls["test"] and min(map(len, walls.values())) > 60


def test_a_goal_that_is_walled_off_is_never_drawn():
    stream = random.Random(0)
    drawn = [text_grid.draw_grid(stream, 3, 4, 4) for _ in range(200)]
    assert all(0 < len(maze.solve(each)) <= 4 and each.count("#") == 16 + 4 for each in drawn)


def test_the_players_of_the_maze_go_to_the_goal_or_have_a_habit():
    def game(expert, seed):
        task = tasks.get("text_grid", **recipes.load("lmrl_gym_maze").task_args)
        problem = task.problem("train", 0, seed)
        play = lmrl_gym_maze.player(np.random.default_rng(seed), expert)
        state, opening = task.turns.begin(problem, 0)
        said, total, done = opening.messages[0]["content"], 0.0, False
        while not done:
            reply = task.turns.step(state, play(said))
            total, done = total + reply.reward, reply.done
            said = "" if done else reply.messages[0]["content"]
        cost = recipes.load("lmrl_gym_maze").task_args["cost"]
        best = 1 - cost * (len(maze.solve(problem.answer)) - 1)
        assert total <= best + 1e-9
        return total, best, reply.parts["reached"]

    for expert, least, most in ((1.0, 0.8, 1.0), (0.0, 0.1, 0.5)):
        returns = np.array([game(expert, seed) for seed in range(200)])
        assert least < returns[:, 2].mean() < most
