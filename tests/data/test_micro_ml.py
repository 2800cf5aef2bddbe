"""Small tables: the fit and the milestones by hand, and what the sandbox makes of answers."""

import pytest

from jaxrl.data import tasks
from jaxrl.data.rewards import milestones
from jaxrl.data.rewards.milestones import Thresholds
from jaxrl.data.tasks.programs import micro_ml, micro_ml_fit

MEDALS = Thresholds(1.0, 2.0, 3.0, 5.0)


@pytest.mark.parametrize(
    "score, dense, sparse",
    [
        (None, 0.1, 0.1), (9.0, 0.3, 0.1), (5.0, 0.4, 0.1), (3.0, 0.8, 0.1), (1.5, 0.9, 0.1),
        (1.0, 1.0, 1.0), (0.5, 1.0, 1.0),
    ],
)  # fmt: skip
def test_milestones_by_hand(score, dense, sparse):
    """0.2 for a score and 0.7, 0.6, 0.5, 0.1 for its tier, as the authors have it; 0.1 for form."""
    given = {"form": 1.0, "lower_better": True}
    assert milestones.dense(score, MEDALS, **given) == dense
    assert milestones.sparse(score, MEDALS, **given) == sparse
    turned = Thresholds(*(-each for each in MEDALS))
    other = None if score is None else -score
    assert milestones.dense(other, turned, form=1.0, lower_better=False) == dense
    assert milestones.dense(score, MEDALS, form=0.0, lower_better=True) == round(dense - 0.1, 6)


def test_the_fit_by_hand():
    """Without a penalty y = 2 + 3 x; with a penalty of 2 rows the slope is 3 * 2 / (2 + 2)."""
    table = [[-1.0, -1.0], [1.0, 5.0]]
    assert micro_ml_fit.predictions(table, [[2.0]], [0], 1, 0.0) == pytest.approx([8.0])
    assert micro_ml_fit.predictions(table, [[2.0]], [0], 1, 2.0) == pytest.approx([2 + 2 * 1.5])
    squares = [[x, 9.0, 1 + x * x] for x in (-2.0, 0.0, 1.0, 3.0)]
    made = micro_ml_fit.predictions(squares, [[4.0, 9.0]], [0], 2, 1e-9)
    assert made == pytest.approx([17.0])


def test_errors_and_profiles_by_hand():
    assert micro_ml.error([1.0, 2.0], [1.0, 4.0]) == pytest.approx(2**0.5)
    table = [[x, x * x, 0.0, 1.0, -x, x] for x in (-2.0, -1.0, 1.0, 2.0)]
    assert micro_ml.profile(table) == "a90 b00 c00 d00 e90"


@pytest.mark.parametrize("split", ["train", "ood"])
def test_answers_are_fitted_and_scored(split):
    dense, sparse = (
        tasks.get("micro_ml", rows=60, ood_rows=300, reward=r) for r in ("dense", "sparse")
    )
    problem = next(
        p
        for i in range(50)
        for p in [dense.problem(split, 0, i)]
        if p.metadata["solution"].split()[1] == "2"
    )
    rows = problem.metadata["files"]["train.csv"].count("\n")
    assert rows == 300 if split == "ood" else 30 <= rows <= 90
    best = dense.reward(problem, dense.gold(problem))
    assert best.value == 1.0 == sparse.reward(problem, dense.gold(problem)).value
    assert best.parts == {"format": 1.0, "valid": 1.0, "medal": 1.0, "gold": 1.0}
    poor = problem.metadata["slip"]
    assert 0.3 <= dense.reward(problem, poor).value <= 0.4
    assert sparse.reward(problem, poor).value == 0.1
    for malformed in ("", "aa 1 3", "f 1 3", "a 3 3", "a 1 3 "):
        assert dense.reward(problem, malformed).value == 0.0
    labels = [str(label) for label in problem.answer]
    assert not any(label in problem.metadata["files"]["test.csv"] for label in labels[:5])


@pytest.mark.parametrize("given", [{"rows": 5}, {"ood_rows": 10}, {"reward": "x"}, {"slips": 2}])
def test_parameters_out_of_range_are_refused(given):
    with pytest.raises(ValueError, match="="):
        tasks.get("micro_ml", **given)
