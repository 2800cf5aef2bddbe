"""The retrieval world: its answers are found fact by fact, and its searches may fail."""

import collections
import json
import random
import string

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import play
from jaxrl.data.environments.search import questions
from jaxrl.data.sources import generate
from tests.data.test_environments import played


def gold(task, problem):
    """The replies to the actions that the task itself would take."""
    return played(play.Player(task).answer, *task.turns.gold(problem, 3), problem=problem)


@pytest.mark.extra
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


REGIMES = {
    "hops": {"regime": "hops", "hops": 2},
    "count": {"regime": "count", "hops": 3},
    "compare": {"regime": "compare", "hops": 2},
}


def truth(problem):
    """The answer to a question in symbols, from all facts of its world."""
    facts = [fact[1:] for fact in problem.metadata["facts"]]
    mark, *names = problem.prompt
    if mark == "#":
        return str(sum(object_ == names[0] for _, object_ in facts))
    if mark == ">":
        return max(names, key=lambda name: int(dict(facts)[name]))
    for _ in range(int(mark)):
        names = [dict(facts)[names[0]]]
    return names[0]


@pytest.mark.sample(3, broad=3)
@pytest.mark.parametrize("synthesis", (0, 5))
@pytest.mark.parametrize("credit", (0.0, 0.5))
@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_is_answered_by_searches(regime, credit, synthesis):
    task = tasks.get("retrieval", **REGIMES[regime], credit=credit, synthesis=synthesis)
    answers = collections.Counter()
    for index, split in enumerate(task.splits * 30):
        problem = task.problem(split, 1, index)
        assert problem.answer == truth(problem)
        answers[split, problem.answer] += 1
        opening, *replies = gold(task, problem)
        facts = len(problem.metadata.get("needed", problem.metadata.get("chain", "")[1:]))
        assert len(replies) == facts + (regime == "count") + 1 and replies[-1].done
        assert sum(reply.reward for reply in replies) == pytest.approx(1)
        said = [m["content"] for reply in (opening, *replies) for m in reply.messages]
        assert set("".join(said)) <= set(task.alphabet)
        lone = tasks.get("retrieval", **REGIMES[regime], credit=credit, searches=0)
        (_, ended), _ = [played(play.Player(lone).answer, a, problem=problem) for a in ("a", "=")]
        assert ended.done  # without a search engine, the first turn is the answer
        wrong = next(n for n in opening.stop if n != problem.answer)
        calls = task.turns.gold(problem, 3)[:-1]
        end = played(play.Player(task).answer, *calls, f"={wrong}", problem=problem)[-1]
        assert end.done and end.reward == 0 and end.parts == {"correct": 0}
    if regime == "count":
        assert {answer for split, answer in answers if split != "ood"} == {*"123"}
        assert {answer for split, answer in answers if split == "ood"} == {"4"}


@pytest.mark.parametrize("synthesis", (0, 5))
@pytest.mark.parametrize("regime", REGIMES)
def test_what_is_trained_on_is_never_held_out(regime, synthesis):
    """By the hash of what is asked and of the facts, which is the problem's id."""
    task = tasks.get("retrieval", **REGIMES[regime], synthesis=synthesis)
    share = generate.TEST_SHARE * 2**64

    def hashes(split):
        return [int(task.problem(split, 0, i).id.partition("/")[2], 16) for i in range(100)]

    assert min(train := hashes("train")) >= share > max(hashes("test"))
    assert len(set(train)) == 100


@pytest.mark.parametrize("searches", (2, 4, 8, 16))
@pytest.mark.parametrize("regime", REGIMES)
def test_a_synthesiser_asks_only_what_it_has_found(regime, searches):
    """Questions from what was found are among those of the whole world, with the same answers."""
    size = REGIMES[regime]["hops"]
    found = 0
    for seed in range(40):
        stream = random.Random(seed)
        facts = questions.populated(regime, stream, size, 4, string.ascii_lowercase)
        known, ended = questions.explored(regime, stream, facts, searches)
        assert len(known) <= searches and set(known) <= set(facts)
        made = questions.composed(regime, known, size, ended)
        names = {name for fact in facts for name in fact[1:]}
        whole = questions.composed(regime, facts, size, names)
        right = {(*sorted(each.about), each.answer) for each in whole}
        assert {(*sorted(each.about), each.answer) for each in made} <= right
        assert len({tuple(sorted(each.about)) for each in made}) == len(made)  # no duplicates
        pairs = {fact[1:] for fact in known}
        assert all(set(each.needed) <= pairs for each in made)
        found += len(made)
    least = 6 if regime == "hops" else 0  # what a search has found is searched for next
    assert found > least or (regime, searches) == ("count", 2)


def test_a_count_is_found_one_fact_at_a_time():
    task = tasks.get("retrieval", regime="count", hops=3, searches=30, failures=0.7)
    problem = next(p for i in range(99) for p in [task.problem("train", 0, i)] if p.answer == "3")
    name = problem.prompt[1]
    opening, *replies = played(play.Player(task).answer, *name * 30, problem=problem)
    said = [reply.messages[0]["content"] for reply in replies]
    facts = [each for each in said if each != "-"]
    assert sorted(facts) == sorted(a + b for a, b in problem.metadata["needed"])  # none is lost
    assert "-" in said[: said.index(facts[-1])] and said[-1] == "-"
    assert {*"1234"} <= {*opening.stop}
    (*_, answered) = played(play.Player(task).answer, name, "3", problem=problem, episode=1)
    assert answered.done and answered.reward == 1
    (*_, other) = played(play.Player(task).answer, name, "2", problem=problem, episode=2)
    assert other.done and other.reward == 0


@pytest.mark.extra
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
        ({"regime": "report"}, "regime='report'"),
        ({"regime": "count", "instructions": True}, "words are for the regime hops"),
        ({"regime": "count", "hops": 3, "names": 3}, "need as many names"),
        ({"regime": "compare", "hops": 1}, "2 facts to compare"),
        ({"synthesis": 1}, "synthesis=1"),
        ({"regime": "count", "hops": 3, "synthesis": 3}, "needs 4 searches"),
        ({"masks": 1, "synthesis": 4}, "synthesis=4 with masks=1"),
        ({"search": "exactly"}, "search='exactly'"),
        ({"search": "bm25", "regime": "count"}, "search='bm25'"),
    ],
)
def test_a_retrieval_world_that_cannot_be_is_refused(params, why):
    with pytest.raises(ValueError, match=why):
        tasks.get("retrieval", **params)


@pytest.mark.extra
def test_a_search_by_bm25_may_find_the_fact_that_leads_to_a_name():
    """It ranks facts that have the name by nothing else, so the first of them is found."""
    pytest.importorskip("bm25s")
    exact, ranked = (tasks.get("retrieval", search=each) for each in ("exact", "bm25"))
    found = []
    for index in range(20):
        problem = ranked.problem("test", 0, index)
        assert problem == exact.problem("test", 0, index)
        state, _ = ranked.turns.begin(problem, 0)
        for name in problem.metadata["chain"][:-1]:
            said = ranked.turns.step(state, name).messages[0]["content"]
            first = next(f for f in problem.metadata["facts"] if name in f[1:])
            assert said == first[1] + first[2]
            found.append(said[0] == name)
    assert 0 < sum(found) < len(found)
