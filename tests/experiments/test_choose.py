"""The page that helps to choose says nothing that is neither measured nor cited."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "docs/effects.md", ROOT / "experiments/runs/survey/README.md")


def rows():
    lines = (ROOT / "docs/choose.md").read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]


def test_every_row_has_a_figure_or_says_that_there_is_none():
    assert len(rows()) > 15
    for *_, why, figure in rows():
        assert re.search(r"\d|reference|not measured", figure), (why, figure)


def test_figures_are_those_of_the_measurements():
    known = "".join(path.read_text() for path in SOURCES)
    text = (ROOT / "docs/choose.md").read_text()
    table = text[text.index("| your situation") : text.index("Figures are differences")]
    intervals = re.findall(r"[+-]\d\.\d{3} \[[^]]*\]", table)
    assert len(intervals) >= 7
    for interval in intervals:
        assert interval in known, interval
    assert "LUFFY in 9 of 12" in known and "LUFFY in 9 of 12" in table
