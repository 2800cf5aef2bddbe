"""The soak, short."""

import json
import re
import subprocess
import sys

import pytest

from tests.acceptance import badge, soak
from tests.jaxrl import tiny


def test_the_table_in_the_docs_is_that_of_the_results():
    """Those that the module has written, of several processes added up."""
    values = json.loads((tiny.ROOT / "tests/acceptance/soak.json").read_text())
    assert values["total"]["differences"] == 0 and not values["differences"]
    page = (tiny.ROOT / "docs/checkpointing.md").read_text()
    assert soak.shown(values) in page
    assert badge.BADGE.read_text() == badge.svg(values)


def test_new_results_are_taken_over(tmp_path, monkeypatch):
    for name in ("RESULTS", "PAGE", "BADGE"):
        copy = tmp_path / getattr(badge, name).name
        copy.write_text(getattr(badge, name).read_text())
        monkeypatch.setattr(badge, name, copy)
    values = json.loads(badge.RESULTS.read_text())
    values["total"] |= {"trials": 1234, "differences": 1}
    (tmp_path / "new.json").write_text(json.dumps(values))
    monkeypatch.setattr(sys, "argv", ["badge", str(tmp_path / "new.json")])
    assert badge.main() == 1
    assert json.loads(badge.RESULTS.read_text()) == values
    assert soak.shown(values) in badge.PAGE.read_text()
    assert "1234 trials" in badge.BADGE.read_text() and badge.RED in badge.BADGE.read_text()


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
