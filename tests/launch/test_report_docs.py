"""The page on reports says what is true."""

import re
from pathlib import Path

from jaxrl.launch.report import collect

DOCS = Path(__file__).parents[2] / "docs"


def test_pictures_and_numbers_of_the_page():
    text = (DOCS / "report.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) == 5 and all((DOCS / target).exists() for target in targets)
    assert f"{collect.ROLLOUT_BYTES // 1_000_000} MB" in text
