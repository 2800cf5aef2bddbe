"""Tasks from exploration, by hand: plans, abstraction, checks, and what curiosity finds."""

import collections
import random

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments.games import workshop
from jaxrl.data.environments.games.workshop import Goal, Tried
from jaxrl.data.sources import generate


@pytest.mark.parametrize(
    ("start", "thing", "steps"),
    [
        ("ab", "e", ("e",)),
        ("abcy", "i", ("e", "f", "i")),
        ("abcd", "l", ("f", "g", "e", "i", "l")),
        ("ab", "i", None),
        ("ab", "a", ()),
    ],
)
def test_plans_take_the_fewest_tools(start, thing, steps):
    found = workshop.plan(start, thing)
    assert found is None if steps is None else sorted(found) == sorted(steps)
    things = set(start)
    assert all([workshop.use(things, tool) for tool in found or ()])


def test_a_tool_needs_its_things_and_works_once():
    things = set("ab")
    assert not workshop.use(things, "f") and not workshop.use(things, "a")
    assert workshop.use(things, "e") and not workshop.use(things, "e") and things == set("abe")


@pytest.mark.parametrize(
    ("step", "goal"),
    [
        (Tried("abcx", ("g", "e", "h", "f", "i")), Goal("abcx", "i", ("e", "f", "i"))),
        (Tried("abcd", ("e", "f", "g", "h", "j")), Goal("abcd", "j", ("f", "g", "j"))),
        (Tried("ab", ("e",)), Goal("ab", "e", ("e",))),
    ],
)
def test_a_goal_keeps_the_tools_that_it_needs(step, goal):
    assert workshop.abstracted(step) == goal


def test_goals_are_played_again_and_kept_once():
    good, same = Goal("ab", "e", ("e",)), Goal("ab", "e", ("e", "e"))
    wrong = [Goal("ab", "f", ("f",)), Goal("abc", "i", ("i",)), Goal("ab", "h", ("e",)), same]
    assert workshop.checked([good, *wrong, good]) == [good]


def test_curiosity_takes_what_was_used_least_and_then_what_works():
    state, stream = frozenset("abc"), random.Random(0)
    counts = collections.Counter({(state, tool): 1 for tool in workshop.NEEDS})
    del counts[state, "f"], counts[state, "m"]
    assert {workshop.novel(stream, state, counts) for _ in range(40)} == {"f", "m"}
    counts[frozenset(), "f"] = 1
    assert {workshop.novel(stream, state, counts) for _ in range(40)} == {"f"}
    counts[state, "f"] = 1
    assert workshop.novel(stream, state, counts) == "m"


def test_curious_exploration_finds_more_and_deeper_goals():
    for seed in range(3):
        curious, chance = (
            workshop.explored_goals(seed, 400, 12, curious=each) for each in (True, False)
        )
        deep = [sum(len(goal.steps) >= 3 for goal in goals) for goals in (curious, chance)]
        assert len(curious) > len(chance) and deep[0] > 2 * deep[1]
        assert not any(generate.held_out(goal.prompt, 0.25) for goal in (*curious, *chance))


def test_exploration_takes_as_many_steps_as_are_asked_for():
    trail = workshop.explore(random.Random(0), 30, 12, workshop.novel)
    assert [len(each.tools) for each in trail] == [*range(1, 13), *range(1, 13), *range(1, 7)]
    for each in trail:
        assert workshop.works(each.things, each.tools[-1]) == each.made


@pytest.mark.parametrize("explorer", workshop.EXPLORERS)
def test_training_goals_come_from_exploration_and_others_from_the_world(explorer):
    task = tasks.get("workshop", explorer=explorer)
    known = {goal.prompt for goal in workshop.world()}
    train = {task.problem("train", 0, i).prompt for i in range(800)}
    assert train < known
    if explorer != "none":
        found = workshop.explored_goals(0, 400, 12, curious=explorer == "curious")
        assert train == {goal.prompt for goal in found}
    test = {task.problem("test", 0, i).prompt for i in range(800)}
    assert test == {prompt for prompt in known if generate.held_out(prompt, 0.25)}


def test_making_the_goal_earns_one_and_ends():
    task = tasks.get("workshop", turns=5)
    made = (task.problem("train", 0, i) for i in range(99))
    problem = next(p for p in made if p.answer == "i")
    bench, opening = task.turns.begin(problem, 0)
    assert opening.messages[0]["content"] == f"{problem.metadata['start']}>i"
    replies = [task.turns.step(bench, action) for action in ("i", "e", "f", "i")]
    assert [r.messages[0]["content"] for r in replies[:3]] == ["-", "+", "+"]
    assert replies[3].done and replies[3].reward == 1 and replies[3].parts["used"] == 4
    bench, _ = task.turns.begin(problem, 0)
    replies = [task.turns.step(bench, action) for action in ("e", "f", "?", "", "n")]
    assert [r.done for r in replies] == [False] * 4 + [True] and replies[-1].reward == 0


def test_a_model_says_what_was_logged_where_things_were_most_alike():
    log = [(frozenset("ab"), True), (frozenset("abc"), True), (frozenset("cd"), False)]
    log += [(frozenset("d"), False), (frozenset("bcd"), False)]
    ask = workshop.predicted
    assert ask(log, frozenset("ab"), 1) and ask(log, frozenset("abx"), 3)
    assert not ask(log, frozenset("cd"), 1) and not ask(log, frozenset("cdx"), 3)
    assert not ask(log, frozenset("ab"), 5)  # two of five
    assert not ask([], frozenset("ab"), 3)
    assert not ask([(frozenset("ab"), True), (frozenset("ac"), False)], frozenset("a"), 2)


def test_training_is_played_in_the_model_and_held_out_goals_in_the_world():
    task = tasks.get("workshop", experience=12, neighbours=1)
    model = workshop.modelled(0, 12, 12, 1)
    states = [(frozenset(goal.start), tool) for goal in workshop.world() for tool in "efgh"]
    wrong = [(s, t) for s, t in states if model(s, t) != workshop.works(s, t)]
    assert 0 < len(wrong) < len(states)
    for split in ("train", "test"):
        for index in range(20):
            problem = task.problem(split, 0, index)
            for tool in "efgh":
                bench, _ = task.turns.begin(problem, 0)
                state = frozenset(problem.metadata["start"])
                expected = (model if split == "train" else workshop.works)(state, tool)
                reply = task.turns.step(bench, tool)
                assert (reply.done or reply.messages[0]["content"] == "+") == expected


def test_a_model_of_more_experience_is_right_more_often():
    goals = workshop.world()
    states = {frozenset(g.start) | set(g.steps[:n]) for g in goals for n in range(len(g.steps))}

    def right(steps):
        model = workshop.modelled(0, steps, 12, 3)
        pairs = [(s, tool) for s in states for tool in workshop.NEEDS]
        return sum(model(s, t) == workshop.works(s, t) for s, t in pairs) / len(pairs)

    assert right(60) < right(600) < right(3000) and right(3000) > 0.9
