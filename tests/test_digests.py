"""Recipes compute what they computed before, and a difference is reported."""

import json
import math
import subprocess
import sys

import pytest

from jaxrl.launch import algorithms, recipes
from tests import digests

HERE, THERE = {"processor": "x"}, {"processor": "y"}
BEFORE = {
    "environment": HERE,
    "metrics": [{"step": 1, "loss": 0.5, "kl": math.nan}],
    "params": "ab",
}


def test_a_difference_is_reported():
    assert digests.differences(BEFORE, BEFORE) == []
    near = BEFORE | {"metrics": [{"step": 1, "loss": 0.5 + 1e-4, "kl": math.nan}], "params": "cd"}
    assert digests.differences(BEFORE, near | {"environment": THERE}) == []
    assert digests.differences(BEFORE, near) == [
        "the final parameters differ",
        "step 1: loss was 0.5, is 0.5001",
    ]
    far = {"environment": THERE, "metrics": [{"step": 1, "loss": 0.6}, {"step": 2}], "params": "ab"}
    assert digests.differences(BEFORE, far) == [
        "1 steps before, 2 now",
        "step 1: kl was nan, is None",
        "step 1: loss was 0.5, is 0.6",
    ]


def test_the_recorded_recipes_exist_and_learn():
    known = json.loads(digests.CPU.read_text())
    assert set(known) <= {*recipes.names(), *algorithms.names()}
    for name, recorded in known.items():
        assert recorded["environment"]["platform"] == "cpu", name
        assert [row["step"] for row in recorded["metrics"]] == [1, 2], name
        config = recipes.load(name)
        # rows have no rewards, and a model this small opens no door, fills no form, makes no 24,
        # ends no match, changes no app as asked, finds no goal; in so few episodes of dreamgym it
        # makes none
        never = ("apps", "board_game", "game24", "keydoor", "html_form")
        hard = config.task in never or name in ("dreamgym", "think_in_games_grid")
        if not config.data.kinds and not hard:
            assert any(row["reward/std"] > 0 for row in recorded["metrics"]), name


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.exact("two steps of a recipe give the recorded metrics and parameters")
def test_recipes_compute_what_is_recorded():
    """In a process of its own, which compiles in another way."""
    command = [sys.executable, "-m", "tests.digests", "check", str(digests.CPU)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
