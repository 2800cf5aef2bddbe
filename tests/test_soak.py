"""The soak, short."""

import json
import re
import subprocess
import sys

import pytest

from tests.acceptance import soak
from tests.jaxrl import tiny


def test_the_table_in_the_docs_is_that_of_the_results():
    """Those that the module has written, of several processes added up."""
    values = json.loads((tiny.ROOT / "tests/acceptance/soak.json").read_text())
    assert values["total"]["differences"] == 0 and not values["differences"]
    page = (tiny.ROOT / "docs/checkpointing.md").read_text()
    assert soak.shown(values) in page


@pytest.mark.broad
@pytest.mark.optimized
@pytest.mark.exact("a run killed at random moments equals an uninterrupted one, to the last bit")
def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one():
    """With groups of partial rollouts under way, which a checkpoint must hold."""
    asked = ["--minutes", "0.1", "--kills", "4", "--layouts", "1 device"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *asked, "--ways", "partial rollouts"],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs, _, kills = re.search(r"1 device \| (\d+) \| (\d+) \| (\d+)", done.stdout).groups()
    assert runs == "1" and int(kills) >= 3  # one may come when all is over
