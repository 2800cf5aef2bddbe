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
        "digests": [["x"], [str(next(FIGURES))]], "id": "m", "role": "primary",
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
    none = row(0, comparison=compared(0.1) | {"p_t": 0.9, "p_flip": 0.9})
    assert read(weak) == [("effect", "")]
    assert read(weak, none)[0] == ("undecided", "")
    assert read(weak, weak | {"other": "all"}, none)[:2] == [("undecided", "")] * 2
    assert read(weak, weak | {"statistic": "pass@8"}, none)[:2] == [("effect", "")] * 2
    alike = row(0, comparison=weak["comparison"])
    assert read(weak, alike, none)[:2] == [("effect", "")] * 2


def test_a_look_is_read_at_its_own_level():
    """Of difference and of equivalence."""
    for mean, status in ((0.1, "effect"), (0.0, "equivalent")):
        base = compared(mean) | {"p_t": 0.03, "p_flip": 0.03}
        base["p_equivalent"] = 0.03 if status == "equivalent" else 1.0
        assert read(row(mean, comparison=base)) == [(status, "")]
        assert read(row(mean, comparison=base | {"level": 0.01})) == [("undecided", "")]


def test_digests_and_machines_are_those_of_the_arms(tmp_path):
    """Digests of the figures that are read: another figure of an arm makes no other test."""
    effect = table.effect_of("raft")
    figures = {"final": {"pass@1": [0.1, 0.2], "length": [3.0, 4.0]}}
    files.write(tmp_path / "arms" / "a.json", figures | {"digest": "1", "machine": "x"})
    longer = {"final": {"pass@1": [0.1, 0.2], "length": [5.0, 4.0]}}
    files.write(tmp_path / "arms" / "b.json", longer | {"digest": "2", "machine": "y"})
    arms = {"arms": [["a", "b"], ["b", "c"]]}
    found = reading.of_arms(arms | {"statistic": "pass@1"}, effect, tmp_path)
    one, same = found["digests"][0]
    assert one == same and found["digests"][1] == [same, "c"]
    assert found["machines"] == [["x", "y"], ["y"]]
    one, other = reading.of_arms(arms | {"statistic": "length"}, effect, tmp_path)["digests"][0]
    assert one != other


def test_arms_at_the_floor_show_nothing():
    assert read(row(0.0, means=[0.001, 0.002])) == [("undecided", "no room")]
    assert read(row(0.0, means=[0.001, 0.002], statistic="length")) == [("equivalent", "")]


@pytest.mark.parametrize(("other", "found"), [(0.969, "equivalent"), (0.971, "undecided")])
def test_the_room_above_the_other_arm_holds_the_minimum_effect(other, found):
    """Where it does not, no effect was possible; to be worse was."""
    why = "no room" if found == "undecided" else ""
    assert read(row(0.0, means=[0.5, other])) == [(found, why)]
    assert read(row(-0.1, means=[0.87, other])) == [("contrary", "")]
    assert read(row(0.0, means=[0.5, other], minimum=0.01, comparison=compared(0.0, 0.01)))[0] == (
        "equivalent", "",
    )  # fmt: skip


def test_a_row_that_paid_with_accuracy_says_so():
    found = read(row(0.1, statistic="length", guard=compared(-0.2)))
    assert found == [("undecided", "accuracies differ")]


def test_equivalence_is_corrected_too():
    loose = dataclasses.asdict(statistics.paired(0.024 + 2 * SPREAD, minimum=0.03))
    assert 0.05 / 20 < loose["p_equivalent"] < 0.05
    assert read(row(0, comparison=loose))[0][0] == "equivalent"
    many = read(row(0, comparison=loose), *(row(0.1) for _ in range(19)))
    assert many[0] == ("undecided", "shown to be small before the correction alone")


def test_only_primary_rows_and_the_baselines_behind_them_are_corrected():
    """A baseline row is read with a correction where its method's primary row is an effect."""
    weak = compared(0.1) | {"p_t": 0.03, "p_flip": 0.03}
    none = compared(0.1) | {"p_t": 0.9, "p_flip": 0.9}
    rows = [
        row(0.1, id="a"), row(0.1, id="a", role="baseline", comparison=weak),
        row(0.1, id="b"), row(0.1, id="b", role="baseline", comparison=none),
        row(0.1, id="c", comparison=none), row(0.1, id="c", role="baseline", comparison=weak),
        row(0.1, id="c", role="descriptive", comparison=weak),
    ]  # fmt: skip
    out = reading.corrected(rows)
    roles = [each["role"] for each in out]
    assert roles == ["primary", "baseline"] * 2 + ["primary", "descriptive", "descriptive"]
    assert [each["tests"] for each in out] == [3, 2, 3, 2, 3, 1, 1]
    assert [each["status"] for each in out] == ["effect", "undecided"] * 2 + [
        "undecided", "effect", "effect",
    ]  # fmt: skip


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
        needed = statistics.seeds_needed(drawn(BLOCK), 0.03)
        looks = [-(-needed // BLOCK) * BLOCK]
    seen = drawn(looks[-1])
    for size, level in zip(looks, statistics.levels(looks), strict=True):
        made = statistics.paired(seen[:size], minimum=0.03, level=level)
        if statistics.status(made, made.p, better="higher") != "undecided":
            break
    return row(effect, comparison=dataclasses.asdict(made))


@pytest.mark.broad
def test_few_of_the_effects_that_are_called_are_false():
    """That is what the correction promises, where half of the methods do nothing."""
    rng, shares, power = np.random.default_rng(1), [], []
    for _ in range(TIMES // 4):
        effects = [0.05, 0.0] * 10
        statuses = [
            each["status"]
            for each in reading.corrected([experiment(rng, e, 0.05) for e in effects])
        ]
        called = [e for e, s in zip(effects, statuses, strict=True) if s in ("effect", "contrary")]
        shares.append(called.count(0.0) / max(1, len(called)))
        power.append(statuses[::2].count("effect") / 10)
    assert np.mean(shares) < 0.05 + 3 * np.std(shares) / np.sqrt(len(shares))
    assert np.mean(power) > statistics.POWER


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("looks", [[12], [6, 12]])
@pytest.mark.parametrize("bimodal", [False, True])
def test_a_set_of_nulls_seldom_has_an_effect(looks, bimodal):
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(TIMES):
        nulls = [experiment(rng, 0.0, 0.07, looks, bimodal) for _ in range(10)]
        statuses = {each["status"] for each in reading.corrected(nulls)}
        wrong += bool(statuses & {"effect", "contrary"})
    assert wrong / TIMES < 0.05 + error(0.05)
