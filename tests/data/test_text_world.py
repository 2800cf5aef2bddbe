"""Games of TextWorld, with the package itself."""

import random

import pytest

from jaxrl.data.environments.bridges import text_world

pytestmark = pytest.mark.extra
pytest.importorskip("textworld")


def play(task, problem, actions):
    game, opening = task.turns.begin(problem, 0)
    replies = []
    for action in actions:
        replies.append(task.turns.step(game, action))
        if replies[-1].done:
            break
    task.turns.close(game)
    return opening, replies


def test_the_shortest_way_earns_everything():
    task = text_world.task(length=3)
    for index in range(3):
        problem = task.problem("train", 0, index)
        opening, replies = play(task, problem, task.turns.gold(problem, 0))
        said = opening.messages[1]["content"]
        assert "$$" not in said and "-= " in said  # no banner, and the first room
        assert replies[-1].done and replies[-1].parts == {"won": 1.0}
        assert sum(reply.reward for reply in replies) == 1.0


def test_a_game_is_that_of_its_seed_whatever_else_is_drawn():
    task = text_world.task(commands=True)
    problem, acts = task.problem("train", 0, 0), ["look", "inventory", "dance", "go west", "look"]
    first = play(task, problem, acts)
    random.seed(5)
    assert first == play(task, problem, acts)
    assert "Commands: " in first[0].messages[1]["content"]
    assert first[0] != play(task, task.problem("train", 0, 1), acts)[0]


def test_games_at_once_are_each_as_alone():
    task = text_world.task()
    problems = [task.problem("train", 0, n) for n in range(2)]
    games = [task.turns.begin(problem, 0)[0] for problem in problems]
    said = [[], []]
    for action in ("look", "go north", "go west", "inventory"):
        for n in range(2):
            said[n].append(task.turns.step(games[n], action))
    for game in games:
        task.turns.close(game)
    for n in range(2):
        assert said[n] == play(task, problems[n], ("look", "go north", "go west", "inventory"))[1]


def test_what_is_no_command_costs_a_turn():
    task = text_world.task(turns=4)
    problem = task.problem("train", 0, 0)
    _, replies = play(task, problem, ["quit", "", "Save game", "restart", "look"])
    assert len(replies) == 4 and replies[-1].done and sum(r.reward for r in replies) == 0
    assert all("no command" in reply.messages[0]["content"] for reply in replies[:3])


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="rooms=0, length=-1: must be 1 or more"):
        text_world.task(rooms=0, length=-1)
    with pytest.raises(ValueError, match="turns=-1"):
        text_world.task(turns=-1)
