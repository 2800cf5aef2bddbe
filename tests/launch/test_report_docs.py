"""The page on reports and its notebook say what is true."""

import json
import re
from pathlib import Path

import pytest

from jaxrl.launch.report import collect

DOCS = Path(__file__).parents[2] / "docs"


def test_pictures_and_numbers_of_the_page():
    text = (DOCS / "report.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) == 5 and all((DOCS / target).exists() for target in targets)
    assert f"{collect.ROLLOUT_BYTES // 1_000_000} MB" in text


@pytest.mark.slow
def test_the_notebook_runs():
    cells = json.loads((DOCS / "look.ipynb").read_text())["cells"]
    scope = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), scope)
    assert (scope["folder"] / "report.html").stat().st_size > 50_000
