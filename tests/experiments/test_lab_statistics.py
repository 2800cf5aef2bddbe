"""The statistics of the protocol: against scipy and by hand, and by simulated experiments."""

import numpy as np
import pytest
from scipy import stats

from experiments.lab import statistics
from experiments.lab.statistics import Comparison


def test_a_comparison_is_that_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.6, 0.1, 9), rng.normal(0.5, 0.1, 9)
    got = statistics.paired(a - b, minimum=0.03)
    known = stats.ttest_rel(a, b)
    assert got.p_t == pytest.approx(known.pvalue)
    interval = known.confidence_interval()
    assert (got.low, got.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    sides = [
        stats.ttest_1samp(a - b, bound, alternative=side).pvalue
        for bound, side in ((-0.03, "greater"), (0.03, "less"))
    ]
    assert got.p_equivalent == pytest.approx(max(sides))
    flips = stats.permutation_test((a - b,), np.mean, permutation_type="samples", n_resamples=9999)
    assert got.p_flip == pytest.approx(flips.pvalue)


def test_random_flips_agree_with_all_flips(monkeypatch):
    values = np.random.default_rng(1).normal(0.3, 1.0, 12)
    exact = statistics.flip_signs(values)
    monkeypatch.setattr(statistics, "EXHAUSTIVE", 5)
    assert statistics.flip_signs(values) == pytest.approx(exact, abs=0.01)


def test_independent_arms_are_compared_by_welch():
    rng = np.random.default_rng(2)
    a, b = rng.normal(1, 0.1, 7), rng.normal(0, 0.5, 11)
    known = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert statistics.unpaired(a, b)[1:] == (pytest.approx(known.low), pytest.approx(known.high))


def test_equal_arms_are_equivalent_and_a_constant_difference_is_an_effect():
    same = statistics.paired(np.zeros(6), minimum=0.03)
    assert (same.effect, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert statistics.status(same, same.p, better="higher") == "equivalent"
    more = statistics.paired(np.full(6, 0.1), minimum=0.03)
    assert statistics.status(more, more.p, better="higher") == "effect"
    assert statistics.status(more, more.p, better="lower") == "contrary"


def test_holm_is_the_textbook_example():
    np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])


def test_benjamini_and_hochberg_is_that_of_scipy():
    p = np.random.default_rng(0).random(17) ** 3
    known = stats.false_discovery_control(p)
    np.testing.assert_allclose(statistics.benjamini_hochberg(p), known)


def test_a_shorter_answer_that_is_wrong_is_no_effect():
    shorter = statistics.paired(np.linspace(-1.1, -0.9, 12), minimum=0.2)
    worse = statistics.paired(np.linspace(-0.2, -0.1, 12), minimum=0.03)
    as_good = statistics.paired(np.linspace(-0.01, 0.01, 12), minimum=0.03)
    given = {"better": "lower", "minimum": 0.03}
    assert statistics.status(shorter, 0.001, guard=worse, **given) == "undecided"
    assert statistics.status(shorter, 0.001, guard=as_good, **given) == "effect"


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_no_status_speaks_for_an_arm_that_paid_with_accuracy(better):
    """The same comparison seen from either arm."""
    wider = statistics.paired(np.linspace(0.9, 1.1, 12), minimum=0.2)
    alike = statistics.paired(np.linspace(-0.01, 0.01, 12), minimum=0.2)
    lost = statistics.paired(np.linspace(-0.2, -0.1, 12), minimum=0.03)
    won = statistics.paired(np.linspace(0.1, 0.2, 12), minimum=0.03)
    given = {"better": better, "minimum": 0.03}
    effect = better == "higher"
    found = statistics.status(wider, 0.001, guard=lost, **given)
    assert found == ("undecided" if effect else "contrary")
    found = statistics.status(wider, 0.001, guard=won, **given)
    assert found == ("effect" if effect else "undecided")
    for guard in (lost, won):
        assert statistics.status(alike, 1.0, guard=guard, **given) == "undecided"


def test_equivalence_is_corrected_too():
    small = statistics.paired(np.random.default_rng(0).normal(0.005, 0.01, 20), minimum=0.03)
    given = {"better": "higher"}
    assert statistics.status(small, 0.001, equivalent=0.04, **given) == "equivalent"
    assert statistics.status(small, 0.001, equivalent=0.06, **given) == "undecided"


def test_power_is_that_of_simulated_tests():
    rng = np.random.default_rng(3)
    samples = rng.normal(0.03, 0.05, (4000, 20))
    found = stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05
    assert statistics.power(0.05, 0.03, 20) == pytest.approx(found.mean(), abs=0.03)


@pytest.mark.parametrize("deviation", [0.0, 1e-9, 0.0005, 0.002, 0.003, 0.004])
def test_the_power_for_an_effect_far_above_the_noise_is_one(deviation):
    """SciPy's distribution is not a number there."""
    for seeds in (6, 8, 12, 48):
        found = statistics.power(deviation, 0.03, seeds)
        assert found == pytest.approx(1, abs=1e-4), (deviation, seeds)


def test_a_quiet_pilot_and_a_large_family_take_more_seeds():
    quiet = np.random.default_rng(3).normal(0, 0.002, 6)
    assert statistics.deviation_expected(quiet, 0.03) == 0.03
    assert statistics.deviation_expected(100 * quiet, 0.03) == statistics.deviation_above(
        100 * quiet
    )
    assert statistics.seeds_needed(quiet, 0.03) == statistics.FEWEST
    assert statistics.seeds_needed(quiet, 0.03, rows=60) == statistics.FEWEST
    assert statistics.seeds_needed(quiet, 0.03, rows=61) == statistics.FEWEST_IN_LARGE
    assert statistics.seeds_needed(50 * quiet, 0.03) == statistics.MOST
    assert 2 / 2**12 * 118 > statistics.LEVEL > 118 / (statistics.FLIPS + 1)


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_deviation_is_that_of_the_differences(level):
    values = np.random.default_rng(5).normal(0.1, 0.2, 18)
    found = statistics.paired(values, minimum=0.03, level=level).deviation
    assert found == pytest.approx(np.std(values, ddof=1))
    constant = statistics.paired(np.full(6, 0.1), minimum=0.03)
    assert constant.deviation == pytest.approx(0, abs=1e-12)


def test_looks_spend_the_level_once():
    spent = statistics.levels([12, 24])
    assert sum(spent) == pytest.approx(0.05)
    assert spent[0] == pytest.approx(2 * stats.norm.sf(1.959964 / np.sqrt(0.5)), rel=1e-4)
    assert statistics.levels([30]) == [pytest.approx(0.05)]
    with pytest.raises(ValueError, match=r"looks=\[4, 4\]"):
        statistics.levels([4, 4])


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize("looks", [[24], [12, 24], [6, 12, 18, 24]])
def test_several_looks_at_a_difference_of_the_minimum_are_seldom_equivalent(looks):
    """The level is spent once, as it is for a difference from 0."""
    levels, wrong, times = statistics.levels(looks), 0, 1500
    for values in np.random.default_rng(0).normal(0.03, 0.05, (times, looks[-1])):
        seen = (
            statistics.paired(values[:size], minimum=0.03, level=level)
            for size, level in zip(looks, levels, strict=True)
        )
        wrong += any(statistics.status(x, x.p, better="higher") == "equivalent" for x in seen)
    assert wrong / times < 0.05 + 3 * np.sqrt(0.05 * 0.95 / times)


def test_a_difference_below_the_minimum_is_equivalent_not_undecided():
    small = statistics.paired(np.random.default_rng(0).normal(0.005, 0.01, 20), minimum=0.03)
    wide = statistics.paired(np.random.default_rng(0).normal(0.0, 0.3, 8), minimum=0.03)
    assert statistics.status(small, small.p, better="higher") == "equivalent"
    assert statistics.status(wide, wide.p, better="higher") == "undecided"
    assert isinstance(small, Comparison)
