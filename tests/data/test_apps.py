"""Apps, by hand: goals, calls, what a state is judged by, and what documentation is for."""

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments.work import apps
from jaxrl.data.types import Problem

STATE = {"A": {"a": "1", "b": "2"}, "B": {"a": "3", "b": "4"}}
NAMES = {"A": "tpr", "B": "prs"}


def episode(goal, *actions, **params):
    """The replies to the actions of an episode in a world that is given by hand."""
    task = tasks.get("apps", apps=2, keys=2, **params)
    problem = Problem("by hand", goal, "", metadata={"state": STATE, "names": NAMES})
    world, _ = task.turns.begin(problem, 0)
    return [task.turns.step(world, action) for action in actions]


@pytest.mark.parametrize(
    ("goal", "app", "key", "value"),
    [("Aa=7", "A", "a", "7"), ("Bb-", "B", "b", ""), ("Aa>Bb", "B", "b", "1")],
)
def test_a_goal_changes_one_key(goal, app, key, value):
    wanted = apps.after(STATE, goal)
    assert wanted[app][key] == value
    assert sum(wanted[a][k] != STATE[a][k] for a in STATE for k in STATE[a]) == 1


def test_calls_do_what_the_documentation_says():
    *said, last = episode("Aa>Bb", "A?", "Ata;", "B?", "Brb1;", ".")
    assert [reply.messages[0]["content"] for reply in said] == ["tpr", "1", "prs", "+"]
    assert last.done and last.reward == 1
    assert last.parts == {"correct": 1, "passed": 1, "collateral": 0, "docs": 2, "failed": 0}


@pytest.mark.parametrize(
    "call",
    ["Aqa;", "Apa;", "Ata3;", "Ara3;", "Apc3;", "Cpa3;", "C?", "?", "Apa3", "Apa33;", "x.", ""],
)
def test_a_call_that_cannot_run_changes_nothing(call):
    bad, last = episode("Aa=7", call, ".", sparse=False)
    assert bad.messages[0]["content"] == "!" and bad.parts["failed"] == 1
    assert last.reward == 0.5 and last.parts["collateral"] == 0


@pytest.mark.parametrize(
    ("actions", "passed"),
    [
        ((), 1 / 2),
        (("Apa7;",), 1),
        (("Apa7;", "Apb9;"), 1 / 2),
        (("Apb9;",), 0),
        (("Apb9;", "Apa7;", "Apb2;"), 1),  # put back
        (("Ara;",), 1 / 2),
    ],
)
def test_the_state_is_judged_whole(actions, passed):
    for sparse in (False, True):
        last = episode("Aa=7", *actions, ".", sparse=sparse)[-1]
        assert last.parts["passed"] == passed
        assert last.reward == (float(passed == 1) if sparse else passed)


def test_what_was_cleared_is_read_as_empty():
    assert episode("Aa-", "Ara;", "Ata;")[-1].messages[0]["content"] == "-"


def test_the_last_turn_is_judged_too():
    said = episode("Aa=7", *["A?"] * 4, "Apa7;", turns=5)
    assert [reply.done for reply in said] == [False] * 4 + [True] and said[-1].reward == 1


def test_names_of_calls_differ_between_problems():
    """So that they must be read: no name is a call of one kind in most of them."""
    made = [tasks.get("apps").problem("train", 0, n).metadata["names"] for n in range(200)]
    writes = [names["A"][1] for names in made]
    assert max(writes.count(name) for name in set(writes)) < 60
