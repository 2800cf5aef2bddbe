"""Published speeds of asynchronous training beside what `jaxrl.launch.planning.simulate` makes of
their set-ups: `python -m experiments.published` prints the table of docs/asynchronous.md.

Each system has a file with the inputs that it published, where they were read, and what had to be
assumed or fitted. A row is *fitted* where a free input was chosen so that its figure comes out, and
*predicted* where nothing was. Fits are computed here, by solving for one input at a time.
"""

from __future__ import annotations

from experiments.published import april, areal, unpredicted, verl
from experiments.published.figures import Row, markdown


def rows() -> list[Row]:
    """All figures, by system."""
    return [*areal.rows(), *april.rows(), *verl.rows(), *unpredicted.rows()]


def table() -> str:
    """Published and simulated figures, in Markdown."""
    return markdown(rows())
