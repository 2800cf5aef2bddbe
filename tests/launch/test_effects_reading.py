"""How recorded rows are read: the corrections, and what makes a row undecided."""

import dataclasses

import numpy as np
import pytest

from jaxrl.launch.lab import plans, statistics

SPREAD = np.linspace(-0.01, 0.01, 24)


def compared(mean, minimum=0.03):
    return dataclasses.asdict(statistics.paired(mean + SPREAD, minimum=minimum))


def row(mean, **changed):
    base = {
        "family": "objectives", "statistic": "pass@1", "better": "higher", "minimum": 0.03,
        "comparison": compared(mean), "guard": None, "at_tokens": None, "tokens": 1.0,
        "means": [0.5 + mean, 0.5],
    }  # fmt: skip
    return base | changed


def read(*rows):
    return [(each["status"], each["why"]) for each in plans.corrected(rows)]


def test_a_row_is_decided_by_its_p_values():
    found = read(row(0.1), row(0.0), row(-0.1))
    assert found == [("effect", ""), ("equivalent", ""), ("contrary", "")]


@pytest.mark.parametrize("mean", [0.1, 0.0, -0.1])
def test_unequal_tokens_need_both_views(mean):
    """The view at equal tokens decides where budgets differ, and nowhere else."""
    decided = read(row(mean))
    agreeing, other = compared(mean), compared(0.05 if mean <= 0 else -0.05)
    assert read(row(mean, tokens=0.5, at_tokens=agreeing)) == decided
    assert read(row(mean, tokens=1.05, at_tokens=other)) == decided
    for tokens in (0.5, 2.0):
        found = read(row(mean, tokens=tokens, at_tokens=other))
        assert found == [("undecided", "otherwise at equal tokens")]


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
    many = read(row(0, comparison=loose), *[row(0.1)] * 19)
    assert many[0] == ("undecided", "")
