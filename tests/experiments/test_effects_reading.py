"""How recorded rows are read: the corrections, and what makes a row undecided."""

import dataclasses
import itertools

import numpy as np
import pytest

from experiments.effects import table
from experiments.lab import files, reading, statistics
from experiments.lab.effect import BLOCK

FIGURES = itertools.count()
"""Rows of the tests compare different figures, each by a number."""
SPREAD = np.linspace(-0.01, 0.01, 24)


def compared(mean, minimum=0.03):
    return dataclasses.asdict(statistics.paired(mean + SPREAD, minimum=minimum))


def row(mean, **changed):
    base = {
        "family": "objectives", "statistic": "pass@1", "better": "higher", "minimum": 0.03,
        "comparison": compared(mean), "guard": None, "at_tokens": None, "tokens": 1.0,
        "at_updates": None, "updates": 1.0, "means": [0.5 + mean, 0.5],
        "digests": [["x"], [str(next(FIGURES))]],
    }  # fmt: skip
    return base | changed


def read(*rows):
    return [(each["status"], each["why"]) for each in reading.corrected(rows)]


def test_a_row_is_decided_by_its_p_values():
    found = read(row(0.1), row(0.0), row(-0.1))
    assert found == [("effect", ""), ("equivalent", ""), ("contrary", "")]


@pytest.mark.parametrize("mean", [0.1, 0.0, -0.1])
@pytest.mark.parametrize("budget", ["tokens", "updates"])
def test_unequal_budgets_need_both_views(mean, budget):
    """The view at equal budgets decides where they differ, and nowhere else."""

    def found(ratio, view):
        return read(row(mean, **{budget: ratio, f"at_{budget}": view}))

    decided = read(row(mean))
    agreeing, other = compared(mean), compared(0.05 if mean <= 0 else -0.05)
    assert found(0.5, agreeing) == decided
    assert found(1.05, other) == decided
    for ratio in (0.5, 0.8, 1.2, 2.0):
        assert found(ratio, other) == [("undecided", f"otherwise at equal {budget}")]
        assert found(ratio, None) == [("undecided", f"no view at equal {budget}")]


@pytest.mark.parametrize("mean", [0.1, 0.0, -0.1])
def test_each_of_two_unequal_budgets_has_a_say(mean):
    views = {"at_tokens": compared(mean), "at_updates": compared(mean)}
    assert read(row(mean, tokens=0.5, updates=0.5, **views)) == read(row(mean))
    for name in views:
        (found,) = read(row(mean, tokens=0.5, updates=0.5, **views | {name: None}))
        assert found[0] == "undecided"
    near = read(row(mean, tokens=0.95, updates=1.05))
    assert near[0][0] != "undecided" and near[0][1] == ""


def test_rows_of_the_same_figures_count_once():
    """An ablation that gives the figures of another one is no further test."""
    weak = row(0.0, comparison=compared(0.1) | {"p_t": 0.03, "p_flip": 0.03})
    assert read(weak, row(0.1), row(0.1))[0] == ("effect", "")
    none = compared(0.1) | {"p_t": 0.9, "p_flip": 0.9}
    assert read(weak, row(0, comparison=none))[0] == ("undecided", "")
    assert (
        read(weak, weak | {"other": "all"}, weak | {"other": "advantage"}) == [("effect", "")] * 3
    )
    alike = [row(0, comparison=weak["comparison"]) for _ in range(2)]
    assert read(*alike) == [("undecided", "")] * 2
    assert read(weak, weak | {"statistic": "pass@8"}) == [("undecided", "")] * 2


def test_a_look_is_read_at_its_own_level():
    """Of difference and of equivalence."""
    for mean, status in ((0.1, "effect"), (0.0, "equivalent")):
        base = compared(mean) | {"p_t": 0.03, "p_flip": 0.03}
        base["p_equivalent"] = 0.03 if status == "equivalent" else 1.0
        assert read(row(mean, comparison=base)) == [(status, "")]
        assert read(row(mean, comparison=base | {"level": 0.01})) == [("undecided", "")]


def test_digests_and_machines_are_those_of_the_arms(tmp_path):
    files.write(tmp_path / "arms" / "a.json", {"digest": "1", "machine": "x"})
    files.write(tmp_path / "arms" / "b.json", {"digest": "2", "machine": "y"})
    found = reading.of_arms({"arms": [["a", "b"], ["b", "c"]]}, tmp_path)
    assert found == {"digests": [["1", "2"], ["2", "c"]], "machines": [["x", "y"], ["y"]]}


@pytest.mark.parametrize("level", [0.001, 0.995])
def test_arms_at_the_floor_or_the_ceiling_show_nothing(level):
    found = read(row(0.0, means=[level, level]))
    assert found == [("undecided", "no room")]
    assert read(row(0.0, means=[level, level], statistic="length")) == [("equivalent", "")]


def test_a_row_that_paid_with_accuracy_says_so():
    found = read(row(0.1, statistic="length", guard=compared(-0.2)))
    assert found == [("undecided", "accuracies differ")]


def test_equivalence_is_corrected_within_its_family():
    loose = dataclasses.asdict(statistics.paired(0.024 + 2 * SPREAD, minimum=0.03))
    assert 0.05 / 20 < loose["p_equivalent"] < 0.05
    assert read(row(0, comparison=loose))[0][0] == "equivalent"
    many = read(row(0, comparison=loose), *(row(0.1) for _ in range(19)))
    assert many[0] == ("undecided", "shown to be small before the correction alone")


def recorded(family):
    """The last look at each row of a family, with what its arms gave."""
    last = {}
    for name in table.names():
        for each in table.recorded(name):
            last[name, each["task"], each["against"], each["other"]] = each
    return [
        each | reading.of_arms(each, table.RESULTS) | {"at_updates": None}
        for each in last.values()
        if each["family"] == family
    ]


OTHERS = recorded("objectives")
"""Rows of the largest family, which a simulated one is corrected with."""
TIMES = 200
"""Simulations of a rate."""


def error(rate):
    """Three standard errors of a simulated rate."""
    return 3 * np.sqrt(rate * (1 - rate) / TIMES)


def experiment(rng, effect, deviation, looks=None, bimodal=False):
    """A row as the protocol plans and measures it; with looks, up to the first that decides."""

    def drawn(size):
        noise = rng.normal(0, deviation, size)
        if bimodal:  # either arm fails altogether on one seed in ten
            noise += 0.2 * (rng.random(size) < 0.1) - 0.2 * (rng.random(size) < 0.1)
        return effect + noise

    if looks is None:
        needed = statistics.seeds_needed(drawn(BLOCK), 0.03, len(OTHERS) + 1)
        looks = [-(-needed // BLOCK) * BLOCK]
    seen = drawn(looks[-1])
    for size, level in zip(looks, statistics.levels(looks), strict=True):
        made = statistics.paired(seen[:size], minimum=0.03, level=level)
        if statistics.status(made, made.p, better="higher") != "undecided":
            break
    return row(effect, comparison=dataclasses.asdict(made))


def found(effect, deviation):
    """Statuses of experiments, each corrected with the recorded rows of its family."""
    rng = np.random.default_rng(0)
    made = (experiment(rng, effect, deviation) for _ in range(TIMES))
    return [reading.corrected([*OTHERS, each])[-1]["status"] for each in made]


@pytest.mark.parametrize("deviation", [0.05, 0.07])
def test_a_planted_effect_is_found_in_the_largest_family(deviation):
    """Four of five, where the most seeds have the power at 5% over the number of rows.

    That is up to a deviation of 0.07.
    """
    level = statistics.LEVEL / (len(OTHERS) + 1)
    assert statistics.power(deviation, 0.05, statistics.MOST, level) >= statistics.POWER
    assert statistics.power(0.08, 0.05, statistics.MOST, level) < statistics.POWER
    rate = found(0.05, deviation).count("effect") / TIMES
    assert rate > statistics.POWER - error(statistics.POWER)


def test_a_planted_null_in_the_largest_family_is_no_effect():
    statuses = found(0.0, 0.07)
    assert (statuses.count("effect") + statuses.count("contrary")) / TIMES <= 0.05


@pytest.mark.parametrize("looks", [[12], [6, 12]])
@pytest.mark.parametrize("bimodal", [False, True])
def test_a_family_of_nulls_seldom_has_an_effect(looks, bimodal):
    """That is what the correction promises: of the whole family, not of each row."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(TIMES):
        family = [experiment(rng, 0.0, 0.07, looks, bimodal) for _ in range(10)]
        statuses = {each["status"] for each in reading.corrected(family)}
        wrong += bool(statuses & {"effect", "contrary"})
    assert wrong / TIMES < 0.05 + error(0.05)
