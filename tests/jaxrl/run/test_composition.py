"""Every pair of methods runs in one run, or is refused before anything is compiled."""

import json

import pytest

from jaxrl.run import loop
from tests import composition

QUICK = [{"partial rollouts", "replay"}]
BROAD = [{"partial rollouts", other} for other in ("chunks", "curriculum", "guidance", "critic")]


def marks(pair):
    """Of the test of a pair."""
    if pair in QUICK:
        return ()
    return pytest.mark.broad if pair in BROAD else pytest.mark.slow


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A warm-started policy from which all pairs start."""
    return composition.started(tmp_path_factory.mktemp("started") / "run")


@pytest.mark.sample(0, broad=1)
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=" and ".join(pair), marks=marks(set(pair)))
        for pair in composition.PAIRS
    ],
)
def test_a_pair_works_together(pair, started, tmp_path):
    if why := composition.refusal(pair):
        with pytest.raises(ValueError) as refused:
            loop.train(composition.config(tmp_path, pair))
        assert str(refused.value) == why
        return
    assert composition.failures(pair, started, tmp_path) == []


def test_the_document_says_what_is_declared():
    made = composition.document()
    assert composition.DOCUMENT.read_text() == made, (
        "run python -m tests.composition > docs/composition.md"
    )


def test_the_record_names_pairs_that_exist():
    recorded = json.loads(composition.RECORD.read_text())
    assert set(recorded["pairs"]) <= {" and ".join(pair) for pair in composition.PAIRS}
    assert recorded["environment"]["platform"] == "cpu"
