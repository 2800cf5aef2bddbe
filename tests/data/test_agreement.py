"""Agreement statistics against published values and scikit-learn's kappa."""

import json

import numpy as np
import pytest

from jaxrl.data.selection import agreement
from jaxrl.launch import cli

NAN = float("nan")
# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability": 4 observers, 12 units
RATINGS = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
)


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_alpha_of_the_published_example(level, alpha):
    assert agreement.krippendorff_alpha(RATINGS, level) == pytest.approx(alpha, abs=5e-4)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("level", "weights"), [("nominal", None), ("ordinal", "linear"), ("interval", "quadratic")]
)
def test_kappa_equals_scikit_learn(level, weights):
    metrics = pytest.importorskip("sklearn.metrics")
    one, two = np.random.default_rng(0).integers(0, 4, (2, 50)).astype(float)
    two[:30] = one[:30]
    wanted = metrics.cohen_kappa_score(one, two, weights=weights)
    assert agreement.cohen_kappa(one, two, level) == pytest.approx(wanted)


def test_kappa_by_hand_and_what_is_not_defined():
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: observed 0.7, by chance 0.5
    one = np.repeat([1.0, 1, 0, 0], [20, 5, 10, 15])
    two = np.repeat([1.0, 0, 1, 0], [20, 5, 10, 15])
    assert agreement.cohen_kappa(one, two) == pytest.approx(0.4)
    assert np.isnan(agreement.cohen_kappa(np.ones(3), np.ones(3)))
    assert np.isnan(agreement.krippendorff_alpha(np.array([[1.0, NAN], [NAN, 1.0]])))


def test_the_command(tmp_path, capsys):
    path = tmp_path / "marks.jsonl"
    rows = [{"judge": j, "person": p} for j, p in [(1, 1), (0, 0), (1, 0), (0, 0), (1, None)]]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert cli.main(["agreement", str(path), "--raters", "judge,person", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (pair,) = found["pairs"]
    assert pair["items"] == 4 and pair["equal"] == 0.75 and pair["kappa"] == pytest.approx(0.5)
    assert cli.main(["agreement", str(path), "--raters", "judge"]) == 2
    assert "two columns or more" in capsys.readouterr().err
    assert cli.main(["agreement", str(path), "--raters", "judge,other"]) == 2
    assert "no column 'other'" in capsys.readouterr().err
