"""Merging by hand-made arithmetic, and comparisons of weights whose answers are known."""

import numpy as np
import pytest

from jaxrl.models import changes, merge

BASE = {"a": np.array([1.0, 2.0, 3.0, 4.0]), "b": np.zeros((1, 4))}
ONE = {"a": BASE["a"] + [1.0, 0.0, 0.5, 0.0], "b": np.array([[4.0, 0.1, -2.0, 0.2]])}
TWO = {"a": BASE["a"] + [3.0, 2.0, 0.0, 0.0], "b": np.array([[2.0, 0.3, 3.0, -0.1]])}


def close(found, want):
    assert found.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)


def test_mean_and_task_arithmetic():
    close(merge.mean([ONE, TWO], (3, 1)), {k: 0.75 * ONE[k] + 0.25 * TWO[k] for k in BASE})
    want = {k: BASE[k] + 0.5 * (ONE[k] - BASE[k] + 2 * (TWO[k] - BASE[k])) for k in BASE}
    close(merge.task_arithmetic(BASE, [ONE, TWO], (1, 2), scale=0.5), want)


def test_ties_trims_elects_and_averages():
    """Half is kept; the third entry of `b` has both signs, and the greater sum wins."""
    want = {"a": [3.0, 4.0, 3.5, 4.0], "b": [[3.0, 0.0, 3.0, 0.0]]}
    close(merge.ties(BASE, [ONE, TWO], density=0.5), want)


def test_ram_keeps_what_one_model_alone_has_changed():
    want = {"a": [3.0, 6.0, 4.0, 4.0], "b": [[3.0, 0.2, 0.5, 0.05]]}
    close(merge.ram(BASE, [ONE, TWO], scale=2.0), want)


def test_ram_enlarges_what_is_alone_by_the_overlap_of_its_model():
    """ONE shares 1 entry and has 2 alone, TWO shares 1 and has 1: factors 1 + 0.4 / 2 and 1.4."""
    base = {"a": np.zeros(3), "b": np.zeros(2)}
    one = {"a": np.array([1.0, 2.0, 0.0]), "b": np.array([4.0, 0.0])}
    two = {"a": np.array([3.0, 0.0, -5.0]), "b": np.zeros(2)}
    close(
        merge.ram(base, [one, two], scale=1.4),
        {"a": [2.0, 1.2 * 2.0, 1.4 * -5.0], "b": [1.2 * 4.0, 0.0]},
    )
    close(merge.ram(base, [one, two]), {"a": [2.0, 2.0, -5.0], "b": [4.0, 0.0]})


def test_dare_keeps_the_expected_change():
    base, model = {"a": np.zeros(20_000)}, {"a": np.full(20_000, 0.5)}
    found = merge.dare(base, [model, model], density=0.25)["a"]
    assert set(np.unique(found)) == {0.0, 1.0, 2.0}
    assert np.mean(found) == pytest.approx(0.5, abs=0.02)
    np.testing.assert_array_equal(found, merge.dare(base, [model, model], density=0.25)["a"])
    close(merge.dare(BASE, [ONE, TWO], density=1.0), merge.mean([ONE, TWO]))


def test_slerp_follows_the_great_circle():
    one, two = {"a": np.array([2.0, 0.0])}, {"a": np.array([0.0, 2.0])}
    angle = np.pi / 6
    want = {"a": 2 * np.array([np.cos(angle), np.sin(angle)])}
    close(merge.slerp(one, two, share=1 / 3), want)
    close(merge.slerp(ONE, ONE, share=0.3), ONE)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: merge.mean([ONE, TWO], (1,)), "give one for each of 2 models"),
        (lambda: merge.mean([ONE, TWO], (1, -1)), "their sum must be above 0"),
        (lambda: merge.ties(BASE, [ONE], density=0.0), "density=0.0"),
        (lambda: merge.slerp(ONE, TWO, share=2.0), "share=2.0"),
        (lambda: merge.ram(BASE, [ONE], scale=0.5), "scale=0.5"),
    ],
)
def test_refusals_name_the_argument(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_rotation_and_a_scaling_are_distinguished():
    """A turn of the leading direction by 30 degrees keeps the spectrum; doubling keeps the span."""
    before = np.diag([4.0, 2.0, 1.0, 0.5]).astype(np.float32)
    turn = np.eye(4, dtype=np.float32)
    angle = np.pi / 6
    turn[np.ix_([0, 3], [0, 3])] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    turned = changes.change("m", 0, before, turn @ before, rank=1)
    assert turned.angle == pytest.approx(30, abs=1e-3)
    assert turned.spectral_shift == pytest.approx(0, abs=1e-6)
    doubled = changes.change("m", 0, before, 2 * before, rank=2)
    assert doubled.angle == pytest.approx(0, abs=1e-3)
    assert doubled.spectral_shift == pytest.approx(1, rel=1e-6)
    assert doubled.relative_norm == pytest.approx(1, rel=1e-6)


def test_changes_below_bfloat16_are_no_changes():
    before = np.array([1.0, 1.0, 1.0, 0.0], np.float32)
    after = np.array([1.0, 1.001, 1.1, 0.0], np.float32)
    found = changes.change("norm", None, before, after, rank=4)
    assert found.unchanged == 0.75 and found.spectral_shift is None and found.size == 4
