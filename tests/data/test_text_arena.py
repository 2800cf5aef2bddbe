"""Games of TextArena, with the package itself and with a stub of it."""

import importlib.machinery
import random
import re
import sys
import types

import numpy as np
import pytest

from jaxrl.data.environments.bridges import text_arena


@pytest.fixture
def package():
    pytest.importorskip("textarena")


def packaged(test):
    """A test with the package itself."""
    return pytest.mark.extra(pytest.mark.usefixtures("package")(test))


MOVES = {
    "Bandit-v0": ["[red]", "[blue]", "[green]"],
    "FifteenPuzzle-v0": ["[up]", "[down]", "[left]", "[right]"],
    "FrozenLake-v0": ["[up]", "[down]", "[left]", "[right]"],
    "GuessTheNumber-v0": [f"[{n}]" for n in range(1, 21)],
    "LightsOut-v0": [f"[{r} {c}]" for r in range(5) for c in range(5)],
    "Mastermind-v0": ["[1 2 3 4]", "[2 3 4 5]", "[6 5 4 3]"],
    "Minesweeper-v0": [f"[{r} {c}]" for r in range(8) for c in range(8)],
    "Sokoban-v0": ["[up]", "[down]", "[left]", "[right]"],
    "TowerOfHanoi-v0": ["[A B]", "[A C]", "[B C]", "[B A]", "[C A]", "[C B]"],
    "ConnectFour-v0": [f"[{n}]" for n in range(7)],
    "KuhnPoker-v0": ["[check]", "[bet]", "[call]", "[fold]"],
    "Nim-v0": [f"[{p} 1]" for p in range(3)],
    "TicTacToe-v0": [f"[{n}]" for n in range(9)],
}


def played(game, index, turns=30):
    """Texts and the reward of a match of moves at random."""
    task = text_arena.task(game, turns=turns)
    problem = task.problem("train", 0, index)
    match, opening = task.turns.begin(problem, 0)
    stream, said, reply = random.Random(0), [opening.messages[-1]["content"]], None
    while reply is None or not reply.done:
        reply = task.turns.step(match, stream.choice(MOVES[game]))
        said += [message["content"] for message in reply.messages]
        random.random()  # whatever else draws in this process
    return said, reply


@packaged
@pytest.mark.parametrize("game", text_arena.GAMES)
def test_a_match_is_played_to_its_end_and_again_the_same(game):
    ends = set()
    for index in range(4):
        said, reply = played(game, index)
        random.seed(index)
        assert (said, reply) == played(game, index)
        assert all(text.strip() for text in said)
        assert reply.reward is not None and -1 <= reply.reward <= 1
        ends.add(tuple(said))
    assert len(ends) > 1 or game == "TowerOfHanoi-v0"  # which has no chances


@packaged
def test_matches_at_once_do_not_share_their_chances():
    """Two in one process are each as alone."""
    task = text_arena.task("KuhnPoker-v0")
    problems = [task.problem("train", 0, n) for n in range(2)]

    def run(numbers):
        pairs = {n: task.turns.begin(problems[n], 0) for n in numbers}
        said = {n: [pairs[n][1].messages[-1]["content"]] for n in numbers}
        for _ in range(4):
            for n in numbers:
                reply = task.turns.step(pairs[n][0], "[check]")
                said[n] += [message["content"] for message in reply.messages]
        return said

    both = run((0, 1))
    assert both == run((0,)) | run((1,))


@packaged
def test_rewards_are_those_of_the_winner():
    rewards = {played("TicTacToe-v0", index)[1].reward for index in range(30)}
    assert {1.0, -1.0} <= rewards <= {-1.0, 0.0, 1.0}
    firsts = {
        re.search("You are Player ([01])", played("TicTacToe-v0", n)[0][0])[1] for n in range(8)
    }
    assert firsts == {"0", "1"}


@packaged
def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="game='Chess-v0': choose one of Bandit-v0"):
        text_arena.task("Chess-v0")
    with pytest.raises(ValueError, match="turns=0"):
        text_arena.task("Nim-v0", turns=0)


class Drawn:
    """A game that shows draws from both states of the process, and seeds Python's alone."""

    def reset(self, num_players, seed):
        random.seed(seed)
        self.state = types.SimpleNamespace(observations={0: []}, current_player_id=0)
        self.step("")

    def step(self, action):
        drawn = f"{random.random()} {np.random.random()}"
        self.state.observations[0].append((-1, drawn))
        return False, {}


def test_neither_state_of_the_process_reaches_a_match_or_is_changed(monkeypatch):
    """NumPy's and Python's: matches at once are each as alone, whatever else draws."""
    stub = types.ModuleType("textarena")
    stub.__spec__ = importlib.machinery.ModuleSpec("textarena", None)
    stub.make = lambda name: Drawn()
    monkeypatch.setitem(sys.modules, "textarena", stub)
    task = text_arena.task("Bandit-v0")

    def run(numbers):
        pairs = {n: task.turns.begin(task.problem("train", 0, n), 0) for n in numbers}
        said = {n: [pairs[n][1].messages[0]["content"]] for n in numbers}
        for _ in range(3):
            for n in numbers:
                reply = task.turns.step(pairs[n][0], "[red]")
                said[n].append(reply.messages[0]["content"])
            random.random(), np.random.random()
        return said

    both = run((0, 1))
    assert both == run((0,)) | run((1,)) and both[0] != both[1]
    random.seed(7), np.random.seed(7)
    match, _ = task.turns.begin(task.problem("train", 0, 0), 0)
    task.turns.step(match, "[red]")
    assert random.random() == random.Random(7).random()
    assert np.random.random() == np.random.RandomState(7).random()
