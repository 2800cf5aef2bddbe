"""Takes the counts of a soak over: the file of results, the table of the docs and the badge.

`python -m tests.acceptance.badge FILE` reads what `python -m tests.acceptance.soak --out FILE` has
written. Without a file it writes page and badge anew from the results that are kept.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.acceptance import soak
from tests.jaxrl import tiny

RESULTS = tiny.ROOT / "tests/acceptance/soak.json"
PAGE = tiny.ROOT / "docs/checkpointing.md"
BADGE = tiny.ROOT / "docs/images/soak.svg"
GREEN, RED, GREY = "#2e7d32", "#c62828", "#555"


def svg(values: Mapping[str, Any]) -> str:
    """The badge: trials, minutes and differences of a file of results."""
    total = values["total"]
    label = "soak"
    text = (
        f"{total['trials']} trials in {values['seconds'] / 60:.0f} minutes, "
        f"{total['differences']} differences"
    )
    left, right = (round(6.6 * len(part)) + 14 for part in (label, text))
    color = RED if total["differences"] else GREEN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {text}">\n'
        f"<title>{label}: {text}</title>\n"
        f'<rect width="{left}" height="20" fill="{GREY}"/>\n'
        f'<rect x="{left}" width="{right}" height="20" fill="{color}"/>\n'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" '
        'font-size="11">\n'
        f'<text x="{left / 2}" y="14">{label}</text>\n'
        f'<text x="{left + right / 2}" y="14">{text}</text>\n'
        "</g>\n</svg>\n"
    )


def main() -> int:
    """Write results, page and badge; 1 if the soak has found a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS, help="of a soak")
    text = parser.parse_args().results.read_text()
    old, new = (json.loads(each) for each in (RESULTS.read_text(), text))
    page = PAGE.read_text()
    if soak.shown(old) not in page:
        raise SystemExit(f"{PAGE} does not have the table of {RESULTS}; restore it from git")
    PAGE.write_text(page.replace(soak.shown(old), soak.shown(new)))
    RESULTS.write_text(text)
    BADGE.write_text(svg(new))
    return int(new["total"]["differences"] > 0)


if __name__ == "__main__":
    sys.exit(main())
