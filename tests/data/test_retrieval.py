"""The retrieval world: its answers are found fact by fact, and its searches may fail."""

import json

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import play
from tests.data.test_environments import played


def gold(task, problem):
    """The replies to the actions that the task itself would take."""
    return played(play.Player(task).answer, *task.turns.gold(problem, 3), problem=problem)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"hops": 3, "searches": 5},
        {"searches": 0},
        {"hops": 1, "credit": 0.5},
        {"instructions": True, "hops": 3, "searches": 4, "credit": 0.25},
        {"instructions": True, "searches": 0},
    ],
)
def test_retrieval_is_answered_fact_by_fact(params):
    if params.get("instructions"):
        pytest.importorskip("bm25s")
    task = tasks.get("retrieval", **params)
    for index, split in enumerate(task.splits * 3):
        problem = task.problem(split, 1, index)
        opening, *replies = gold(task, problem)
        hops = params.get("hops", 2) + (split == "ood")
        searches = min(hops, params.get("searches", hops))
        assert len(replies) == searches + 1 and replies[-1].done
        assert sum(reply.reward for reply in replies) == (
            1 if searches else 1 - params.get("credit", 0)
        )
        if not params.get("instructions"):  # by whose search more than the fact asked for is found
            assert {reply.reward for reply in replies[:-1]} <= {params.get("credit", 0) / hops}
        assert bool(opening.tools) == bool(params.get("instructions") and searches)
        assert set(problem.prompt) <= set(task.alphabet)
        facts = [fact[1:] for fact in problem.metadata["facts"]]
        assert len({subject for subject, _ in facts}) == len(facts)  # so the answer is the only one
    wrong = problem.metadata["chain"][0]
    lone = tasks.get("retrieval", **params | {"searches": 0})
    assert played(play.Player(lone).answer, wrong, problem=problem)[-1].reward == 0


def test_a_search_may_find_something_else_or_fail():
    """By the seed and the count of searches: the same in every member of a group."""
    made = {"hops": 2, "searches": 40}
    clean, noisy, broken = (
        tasks.get("retrieval", **made, **each) for each in ({}, {"noise": 0.5}, {"failures": 0.5})
    )
    problem = clean.problem("train", 0, 0)
    first = problem.metadata["chain"][0]

    def found(task):
        said = played(play.Player(task).answer, *[first] * 40, problem=problem)
        return [reply.messages[0]["content"] for reply in said[1:]]

    (right,) = set(found(clean))
    assert right == "".join(problem.metadata["chain"][:2])
    others, failed = found(noisy), found(broken)
    assert others == found(noisy) and 8 < others.count(right) < 36
    assert all(len(each) == 2 for each in others)
    assert set(failed) == {right, "-"} and 8 < failed.count("-") < 32
    assert noisy.turns.gold is None is broken.turns.gold
    assert clean.pure and not tasks.get("retrieval", latency=0.1).pure


@pytest.mark.parametrize("credit", (0.0, 0.5))
def test_masked_facts_are_searched_for_and_filled_in_turn(credit):
    task = tasks.get("retrieval", masks=2, credit=credit)
    for index, split in enumerate(task.splits * 3):
        problem = task.problem(split, 1, index)
        (one, first), (two, second) = problem.metadata["needed"]
        assert problem.prompt == f"{one}-{two}-" and problem.answer == first + second
        said = gold(task, problem)
        assert [reply.reward for reply in said[1:]] == [credit / 2] * 2 + [(1 - credit) / 2] * 2
        assert said[-1].done and said[-1].parts == {"correct": 1} and not said[-2].done
        answer, wrong = play.Player(task).answer, one
        said = played(answer, one, f"={wrong}", second, problem=problem, episode=1)
        assert said[1].messages[0]["content"] == one + first
        assert [reply.reward for reply in said[1:]] == [credit / 2, 0, (1 - credit) / 2]
        assert said[-1].done and said[-1].parts == {"correct": 0.5}
    assert task.alphabet == tasks.get("retrieval").alphabet  # one tokenizer for both


def test_a_turn_in_symbols_ends_with_its_letter_and_an_answer_names_something():
    task = tasks.get("retrieval", searches=4, malformed=-1.0)
    problem = task.problem("train", 0, 0)
    first, second, third = problem.metadata["chain"]
    opening, found, *_ = played(play.Player(task).answer, first, problem=problem)
    assert opening.stop == found.stop and first in opening.stop and "=" not in opening.stop
    for answer, reward in ((third, 1), (first, 0), ("=", -1), ("", -1)):
        said = played(
            play.Player(task).answer, first, second, f"={answer}", problem=problem, episode=1
        )
        assert said[-1].done and said[-1].reward == reward
    with pytest.raises(ValueError, match=r"malformed=0\.5 is a penalty"):
        tasks.get("retrieval", malformed=0.5)


def test_retrieval_in_words_is_asked_by_calls_of_a_tool():
    pytest.importorskip("bm25s")
    task = tasks.get("retrieval", instructions=True, failures=0.5, searches=9)
    problem = task.problem("test", 0, 0)
    person, city, country = problem.metadata["chain"]
    assert problem.prompt == f"In which country does {person} live?"
    asked = json.dumps({"name": "search", "arguments": {"query": f"where does {person} live"}})
    asked = f"<tool_call>\n{asked}\n</tool_call>"
    *_, answered = said = played(
        play.Player(task).answer, *[asked] * 8, f"{city} lies in {country}.", problem=problem
    )
    texts = {reply.messages[0]["content"] for reply in said[1:-1]}
    assert any(text.startswith("error: the search engine") for text in texts)
    assert any(f"{person} lives in {city}." in text for text in texts)
    assert (answered.reward, answered.done) == (1.0, True)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"hops": 4}, "hops=4"),
        ({"names": 6}, "names=6"),
        ({"searches": -1}, "searches=-1"),
        ({"noise": 1.0}, r"noise=1\.0"),
        ({"latency": -1.0}, "latency"),
        ({"credit": 2.0}, "credit"),
        ({"masks": 5}, "masks=5"),
        ({"masks": 1, "instructions": True}, "masks=1"),
    ],
)
def test_a_retrieval_world_that_cannot_be_is_refused(params, why):
    with pytest.raises(ValueError, match=why):
        tasks.get("retrieval", **params)
