"""Every pair of methods runs in one run, or is refused before anything is compiled."""

import numpy as np
import pytest

from jaxrl.record import metrics
from jaxrl.run import loop
from tests import composition
from tests.jaxrl import tiny

QUICK = [
    {"partial rollouts", other}
    for other in ("curriculum", "guidance", "chunks", "replay", "critic")
]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A warm-started policy that all pairs begin from."""
    directory = tmp_path_factory.mktemp("started") / "run"
    few = {"warm_start.steps": 40, "warm_start.batch_size": 32, "eval.every": 0, "steps": 1}
    loop.train(tiny.config(directory, **few))
    return directory


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(
            pair, id=" and ".join(pair), marks=() if set(pair) in QUICK else pytest.mark.slow
        )
        for pair in composition.PAIRS
    ],
)
def test_a_pair_works_together(pair, started, tmp_path):
    if why := composition.refusal(pair):
        with pytest.raises(ValueError) as refused:
            loop.train(composition.config(tmp_path, pair))
        assert str(refused.value) == why
        return
    loop.train(composition.config(tmp_path, pair, model=str(started)))
    rows = metrics.read(tmp_path)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(np.isfinite(row["loss"]) and row["skipped"] == 0 for row in rows)
    assert rows[0]["logp_gap_max"] < 1e-3


def test_the_document_says_what_is_declared():
    made = composition.document()
    assert composition.DOCUMENT.read_text() == made, (
        "run python -m tests.composition > docs/composition.md"
    )
