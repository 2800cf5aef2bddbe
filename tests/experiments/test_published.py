"""Published speeds, and what is simulated of them."""

from pathlib import Path

import numpy as np
import pytest

from experiments import published
from experiments.published import areal, figures, verl
from experiments.published.figures import Row


def test_lengths_have_a_mean_and_a_limit_and_are_always_the_same():
    drawn = figures.lengths((500, 4), 300.0, 1000)
    assert drawn.shape == (500, 4) and drawn.min() >= 1 and drawn.max() == 1000
    assert drawn.mean() == pytest.approx(300.0, abs=0.5)
    assert np.array_equal(drawn, figures.lengths((500, 4), 300.0, 1000))


def test_a_row_says_whether_it_was_fitted():
    rows = [
        Row("a", "speed", 2.0, 2.0, "{:.2f}x", "spread 3"),
        Row("a", "more", 4.0, 3.0, "{:.1f}"),
    ]
    assert figures.markdown(rows).splitlines()[2:] == [
        "| a | speed | 2.00x | 2.00x | +0% | fitted | spread 3 |",
        "|  | more | 4.0 | 3.0 | -25% | predicted |  |",
    ]


def test_published_figures_of_areal_agree_with_each_other():
    """Hours and throughput of both runs give the same tokens; 2.77 is their ratio either way."""
    run = areal.RUNS["1.5B"]
    beside = areal.THROUGHPUT[4] * run.asynchronous * 3600 / run.steps
    assert beside == pytest.approx(areal.tokens_a_step(), rel=1e-3)
    assert run.synchronous / run.asynchronous == pytest.approx(2.77, abs=0.005)
    assert areal.tokens_a_step() / areal.SEQUENCES == pytest.approx(2319, abs=0.5)


def test_what_is_fitted_to_areal_comes_out_and_staleness_1_is_predicted():
    fit, tokens = areal.fitted(), areal.tokens_a_step()
    made = {s: tokens / areal.step_seconds(s, *fit) for s in (0, 1, 4)}
    assert made[0] == pytest.approx(areal.THROUGHPUT[0], rel=0.01)
    assert made[4] == pytest.approx(areal.THROUGHPUT[4], rel=0.01)
    assert made[1] == pytest.approx(areal.THROUGHPUT[1], rel=0.15)


def test_verl_on_32_devices_has_a_step_shorter_than_its_update():
    """Which no schedule gives."""
    speed, _, setup = verl.SPEED[32]
    assert 790.10 / speed < setup.update


@pytest.mark.broad
def test_the_table_of_the_page_is_simulated():
    page = (Path(__file__).parents[2] / "docs/asynchronous.md").read_text()
    rows = published.rows()
    assert figures.markdown(rows) in page
    assert all(abs(row.difference) < 0.05 for row in rows if row.fitted)
