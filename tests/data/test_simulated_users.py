"""Simulated users, by hand: how their mood moves."""

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import emotional_support


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
