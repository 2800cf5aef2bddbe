"""Facts by heart or looked up: what a search finds, the form of an episode, what is shown."""

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments.search import recall
from jaxrl.data.environments.search.recall import Ended
from jaxrl.data.sources import generate


def played(task, question, *actions):
    """The replies to the actions of an episode that asks a question."""
    *_, (_, answer) = recall.path(recall.table(16), question)
    problem = generate.user_problem("recall", question, question, answer, question=question)
    search, opening = task.turns.begin(problem, 0)
    assert opening.messages[0]["content"] == question
    return [task.turns.step(search, action) for action in actions]


def test_every_relation_leads_from_each_name_to_one_of_its_own():
    facts = recall.table(16)
    for relation in recall.RELATIONS:
        found = [facts[relation + name] for name in "abcdefghijklmnop"]
        assert sorted(found) == list("abcdefghijklmnop")
    assert len(recall.learned(16, 0.75)) == 36 and recall.learned(16, 0.75) < facts.keys()


def test_a_question_is_read_from_its_end():
    facts = {"1a": "b", "2b": "c", "3c": "a"}
    assert list(recall.path(facts, "321a")) == [("1a", "b"), ("2b", "c"), ("3c", "a")]


def test_an_episode_is_the_same_text_with_both_engines():
    facts = recall.table(16)
    (q1, one), (q2, two) = recall.path(facts, "21a")
    tool, own = (tasks.get("recall", engine=each) for each in ("tool", "self"))
    found = played(tool, "21a", q1, q2, f"={two}")
    said = played(own, "21a", q1, f"{one}\n{q2}", f"{two}\n={two}")
    texts = [[q1], [q1]]
    for n, act in enumerate((q2, f"={two}")):
        texts[0] += ["\n", found[n].messages[0]["content"] + "\n", act]
        assert not said[n].messages
        texts[1] += ["\n", (f"{one}\n{q2}", f"{two}\n={two}")[n]]
    assert "".join(texts[0]) == "".join(texts[1])
    for replies, calls in ((found, 2.0), (said, 0.0)):
        assert [reply.reward for reply in replies] == [None, None, 1.0]
        assert sum(reply.calls for reply in replies) == calls
        want = {"correct": 1.0, "searches": 2.0, "calls": calls, "true": 1.0}
        assert replies[-1].parts == want


@pytest.mark.parametrize(
    ("actions", "reward", "true"),
    [
        (("1a", "{x}\n2{x}", "{y}\n={c}"), 1.0, 0.0),  # right by luck: both results are made up
        (("1a", "{b}\n2{b}", "{c}\n={x}"), 0.1, 1.0),
        (("={c}",), 0.95, 0.0),  # half of the reward for the form
        (("1a", "2{b}"), 0.0, 0.0),  # no result
        (("1a", "{b}\n2{b}="), 0.0, 0.0),
        (("1a", "{b}\n1a", "{b}\n1a", "{b}\n1a"), 0.0, 1.0),  # more searches than allowed
        (("a1",), 0.0, 0.0),
    ],
)
def test_ssrl_rewards_the_answer_and_the_form(actions, reward, true):
    (_, b), (_, c) = recall.path(recall.table(16), "21a")
    x, y = _others(b, c)
    said = [each.format(b=b, c=c, x=x, y=y) for each in actions]
    last = played(tasks.get("recall", reward="ssrl"), "21a", *said)[-1]
    assert last.done and last.reward == pytest.approx(reward) and last.parts["true"] == true


def _others(b, c):
    """Two names that are found nowhere on the way."""
    made_up = [name for name in "abcdefghijklmnop" if name not in (b, c)]
    facts = recall.table(16)
    x = made_up[0]
    return x, next(name for name in made_up[1:] if facts["2" + x] != name)


@pytest.mark.parametrize(
    ("end", "first", "second"),
    [
        (Ended(True, True, 2, True), 8 / 8, 3 / 3),
        (Ended(False, True, 1, True), 6 / 8, 1 / 3),
        (Ended(True, True, 0, True), -1 / 8, 3 / 3),
        (Ended(False, False, 2, True), 6 / 8, 0.0),
        (Ended(False, False, 0, True), -2 / 8, 0.0),
        (Ended(True, True, 2, False), 1 / 8, 3 / 3),
        (Ended(False, False, 2, False), 0.0, 0.0),
    ],
)
def test_ur2_rewards_calls_first_and_then_the_answer(end, first, second):
    """By the values of the authors' code, 1, 5 and 7, and 2 and 1."""
    assert recall.retrieve(end) == first and recall.answer(end) == second


def test_search_is_offered_where_a_fact_is_not_known():
    facts, known = recall.table(16), recall.learned(16, 0.75)
    task = tasks.get("recall", engine="gated")
    marked = 0
    for index in range(200):
        problem = task.problem("test", 0, index)
        question = problem.prompt.removeprefix("?")
        hard = any(query not in known for query, _ in recall.path(facts, question))
        assert problem.prompt.startswith("?") == hard
        query, found = next(recall.path(facts, question))
        search, _ = task.turns.begin(problem, 0)
        reply = task.turns.step(search, query)
        assert [m["content"] for m in reply.messages] == [found] * hard and reply.calls == hard
        marked += hard
    assert 0.3 < marked / 200 < 0.6


def test_what_is_not_known_is_not_shown_and_asked_for_later():
    facts, known = recall.table(16), recall.learned(16, 0.75)

    def needed(**given):
        task = tasks.get("recall", **given)
        return [task.problem("train", 0, i).prompt for i in range(600)]

    shown = needed(single=0.9, unknown=False)
    counts = [len(question) for question in shown]
    assert set(counts) == {2, 3} and 0.85 < counts.count(2) / 600 < 0.95
    assert {q for each in shown for q, _ in recall.path(facts, each)} == known
    later = needed()
    assert {q for each in later for q, _ in recall.path(facts, each)} == facts.keys()
    task = tasks.get("recall", single=0.9, unknown=False)  # held-out questions stay what they are
    test = {task.problem("test", 0, i).prompt for i in range(600)}
    assert test == {q for q in test if generate.held_out(q, 0.25)} and not test & {*shown, *later}
    assert {len(question) for question in test} == {3}
    assert not {q for each in test for q, _ in recall.path(facts, each)} <= known
