"""Games of TextArena, with the package itself."""

import random
import re

import pytest

from jaxrl.data.environments import text_arena

pytestmark = pytest.mark.extra
pytest.importorskip("textarena")

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


def test_rewards_are_those_of_the_winner():
    rewards = {played("TicTacToe-v0", index)[1].reward for index in range(30)}
    assert {1.0, -1.0} <= rewards <= {-1.0, 0.0, 1.0}
    firsts = {
        re.search("You are Player ([01])", played("TicTacToe-v0", n)[0][0])[1] for n in range(8)
    }
    assert firsts == {"0", "1"}


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="game='Chess-v0': choose one of Bandit-v0"):
        text_arena.task("Chess-v0")
    with pytest.raises(ValueError, match="turns=0"):
        text_arena.task("Nim-v0", turns=0)
