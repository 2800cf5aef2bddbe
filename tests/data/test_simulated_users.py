"""Simulated users, by hand: how a mood moves, and what a question is worth."""

import itertools
import math

import numpy as np
import pytest

from jaxrl.data import tasks
from jaxrl.data.environments.games import diagnosis, emotional_support


def conversation(task, problem, *actions):
    """The opening's text and the replies."""
    state, opening = task.turns.begin(problem, 0)
    return opening.messages[0]["content"], [task.turns.step(state, action) for action in actions]


def needing(need, **params):
    """A task, and a problem of it whose user needs that reply."""
    task = tasks.get("emotional_support", **params)
    made = (task.problem("train", 0, i) for i in range(99))
    return task, next(p for p in made if p.answer == need)


@pytest.mark.parametrize(
    ("difficulty", "emotions"),
    [  # the need is to be listened to: c and q are near, p and a far
        ("simple", (50, 65, 65, 80)),
        ("normal", (50, 50, 30, 50)),
        ("hard", (50, 30, 20, 40)),
    ],
)
def test_the_mood_moves_by_need_and_difficulty(difficulty, emotions):
    task, problem = needing(0, difficulty=difficulty)
    _, replies = conversation(task, problem, "l", "c", "p", "l")
    assert [round(100 * reply.parts["emotion"]) for reply in replies] == list(emotions)
    moods = ["ABC"[(e < 70) + (e < 40)] for e in emotions]
    hints = problem.metadata["hints"]
    said = [reply.messages[0]["content"] for reply in replies]
    assert said == [m + h for m, h in zip(moods, hints[1:], strict=False)]
    assert not any(reply.done or reply.reward for reply in replies)


def test_a_conversation_ends_well_badly_or_in_time():
    task, problem = needing(3, turns=6)
    _, replies = conversation(task, problem, *"aaaaa")
    assert replies[-1].done and replies[-1].reward == replies[-1].parts["content"] == 1
    assert [r.parts["emotion"] for r in replies] == [0.5, 0.65, 0.8, 0.9, 1.0]
    _, replies = conversation(task, problem, "c", "?", "l")  # 20, 10, 0
    assert replies[-1].done and replies[-1].reward == 0 and replies[-1].parts["gone"] == 1
    _, replies = conversation(task, problem, *"aqqqqq")
    assert [r.done for r in replies] == [False] * 5 + [True] and replies[-1].reward == 0.5


def test_a_thought_is_needed_where_it_is_asked_for():
    task, problem = needing(1, think=True)
    _, replies = conversation(task, problem, "4c")
    assert replies[0].parts["emotion"] == 0.5 and not replies[0].done
    for bad in ("c", "cc", "4", "14c", "", "5c"):
        _, replies = conversation(task, problem, "1c", bad)
        assert replies[1].done and replies[1].reward == replies[1].parts["emotion"] == 0


def test_users_let_slip_what_they_need():
    """Shifted by the persona, half of the time and where else a digit happens to be it."""
    task, right = tasks.get("emotional_support"), []
    for index in range(300):
        problem = task.problem("train", 0, index)
        persona = int(problem.prompt[0])
        right += [(int(hint) - persona) % 5 == problem.answer for hint in problem.metadata["hints"]]
    assert sum(right) / len(right) == pytest.approx(0.5 + 0.5 / 5, abs=0.04)
    assert emotional_support.mood(70) == "A" and emotional_support.mood(39) == "C"
    assert [emotional_support.distance(4, each) for each in "lcpaq"] == [1, 2, 2, 1, 0]


def test_shapley_values_of_the_glove_game():
    """Player 0 has a left glove, 1 and 2 have right ones; a pair is worth 1 (Shapley 1953)."""
    worth = np.array([0, 0, 0, 1, 0, 1, 0, 1.0])  # of {}, 0, 1, 01, 2, 02, 12, 012
    np.testing.assert_allclose(diagnosis.shapley(worth), [2 / 3, 1 / 6, 1 / 6])


def test_shapley_values_are_means_over_orders():
    worth = np.random.default_rng(0).normal(size=16)
    want = np.zeros(4)
    for order in itertools.permutations(range(4)):
        joined = 0
        for player in order:
            want[player] += (worth[joined | 1 << player] - worth[joined]) / math.factorial(4)
            joined |= 1 << player
    np.testing.assert_allclose(diagnosis.shapley(worth), want)


def test_what_a_finding_adds_to_the_right_disease():
    """By hand: the first finding is likely in diseases 0 to 2 and unlikely in 3 to 5."""
    worth = diagnosis.worth(0, (1, 1, 0, 0, 0, 0, 0, 0))
    assert worth[0] == pytest.approx(-math.log(6))
    assert worth[1] == pytest.approx(math.log(0.95 / (3 * 0.95 + 3 * 0.05)))
    first, second = 0.95 * 0.95, 0.95 * 0.05
    other = 3 * 0.05 * 0.5
    assert worth[3] == pytest.approx(math.log(first / (first + 2 * second + other)))
    assert worth[1 << 7] == pytest.approx(worth[0])  # the last finding says nothing
    weights = diagnosis.weighed(0, (1, 1, 0, 0, 0, 0, 0, 0), 0.25)
    assert sum(weights) == pytest.approx(1) and min(weights[:2]) > 3 * max(weights[5:])
    assert weights[5] == pytest.approx(weights[7])


def test_a_question_earns_its_weight_once():
    task = tasks.get("diagnosis")
    problem = task.problem("train", 0, 0)
    (given,) = problem.metadata["known"]
    assert problem.prompt == "abcdefgh"[given] + "-+"[problem.metadata["findings"][given]]
    new = next(j for j in range(8) if j != given)
    asked = "abcdefgh"[new]
    _, replies = conversation(task, problem, asked, asked, problem.prompt[0], asked)
    assert replies[0].reward == problem.metadata["weights"][new]
    assert replies[0].messages[0]["content"] == "-+"[problem.metadata["findings"][new]]
    assert [r.messages[0]["content"] for r in replies[1:3]] == ["?", "?"]
    assert [r.reward for r in replies[1:]] == [0, 0, 0] and replies[3].done
    _, (end,) = conversation(task, problem, problem.answer)
    assert end.done and end.reward == end.parts["correct"] == 1 and end.parts["asked"] == 0
    _, (end,) = conversation(task, problem, "U" if problem.answer != "U" else "V")
    assert end.done and end.reward == 0
    alike = tasks.get("diagnosis", importance="uniform").problem("train", 0, 0)
    assert set(alike.metadata["weights"]) == {1 / 8} and alike.prompt == problem.prompt


def test_solutions_ask_for_what_weighs_most():
    task = tasks.get("diagnosis", temperature=0.25)
    problem = task.problem("train", 0, 1)
    *asked, named = task.turns.gold(problem, 0)
    _, replies = conversation(task, problem, *asked, named)
    gains = [r.reward for r in replies[:-1]]
    assert gains == sorted(gains, reverse=True) and len(gains) == 3 and named == problem.answer
    assert replies[-1].reward == 1 and replies[-1].parts["gained"] == pytest.approx(sum(gains))
