"""Figures that experiments/runs/agents reads off held-out episodes."""

import importlib
import sys
from pathlib import Path

import pytest

from jaxrl.launch.settings import configs
from jaxrl.record import jsonl
from jaxrl.run import assemble

FOLDER = Path(__file__).parents[2] / "experiments/runs/agents"


@pytest.fixture
def experiment(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("experiment")
    for name in ("experiment", "arms", "games"):
        sys.modules.pop(name, None)


def episode(*parts):
    """A row of an evaluation, from the policy's and the world's texts in turn."""
    tokens = [(letter, who) for text, who in zip(parts, ("policy", "tool") * 9, strict=False)
              for letter in text]  # fmt: skip
    return {
        "prompt": "r0",
        "completion": "".join(parts),
        "tokens": [letter for letter, _ in tokens],
        "source": [who for _, who in tokens],
    }


@pytest.mark.parametrize(
    ("parts", "share"),
    [
        (("l", "\nr0\n", "r", "\nr1\n", "t"), 0.5),
        (("\n", "\nr0\n", "\n", "\nr0\n", "r", "\nr1\n", "\n"), 2 / 3),
        (("t",), 0.0),
    ],
)
def test_actions_after_which_nothing_has_changed(parts, share, experiment, tmp_path):
    """Whatever they are, a line break too."""
    jsonl.write(tmp_path / "rows.jsonl", [episode(*parts)])
    assert experiment.unchanged(tmp_path / "rows.jsonl") == pytest.approx(share)


def test_different_thoughts_of_all(experiment, tmp_path):
    thoughts = ["<think>1 + 2</think>a", "\nx\n", "<think>3 + 2</think>b", "\nx\n"]
    jsonl.write(tmp_path / "rows.jsonl", [episode(*thoughts), episode(*thoughts[:2])])
    assert experiment.distinct(tmp_path / "rows.jsonl") == pytest.approx(2 / 3)
    jsonl.write(tmp_path / "rows.jsonl", [episode("c")])
    assert experiment.distinct(tmp_path / "rows.jsonl") == 0


@pytest.mark.broad
def test_the_tables_are_those_of_the_results(experiment):
    assert (FOLDER / "tables.md").read_text() == experiment.tables()


@pytest.mark.slow
def test_every_arm_can_begin(experiment, tmp_path):
    for name, each in experiment.EXPERIMENTS.items():
        for arm, argv in each.arms.items():
            if argv != experiment.games.ARM:
                given = [*argv, "--seed", "0", "--run-dir", str(tmp_path / name)]
                assert assemble.assemble(configs.resolve(given)[0]), (name, arm)


def test_scores_have_bounds(experiment):
    scored = {n for n, each in experiment.EXPERIMENTS.items() if "score" in each.figures}
    assert scored == experiment.games.LEAST.keys()
