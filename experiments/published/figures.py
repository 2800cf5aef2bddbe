"""A published figure beside a simulated one, and what the simulations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from jaxrl.launch.planning.simulate import Outcome

SPREAD = 0.8
"""Standard deviation of the logarithm of lengths, where none is published: assumed."""


class Row(NamedTuple):
    """A figure."""

    system: str
    what: str
    published: float
    simulated: float
    shown: str
    """Format of both, such as `{:.2f}x`."""
    fitted: str = ""
    """The input that was fitted to this figure, and its value; empty: the figure is predicted."""

    @property
    def difference(self) -> float:
        """Of the simulated from the published figure, as a share of it."""
        return self.simulated / self.published - 1.0


def markdown(rows: Sequence[Row]) -> str:
    """A table; a system's name is in the first of its rows only."""
    lines = [
        "| system | figure | published | simulated | difference | | fitted input |",
        "|---|---|---|---|---|---|---|",
    ]
    last = ""
    for row in rows:
        name, last = row.system if row.system != last else "", row.system
        both = f"{row.shown.format(row.published)} | {row.shown.format(row.simulated)}"
        kind = "fitted" if row.fitted else "predicted"
        off = f"{row.difference:+.0%}"
        lines.append(f"| {name} | {row.what} | {both} | {off} | {kind} | {row.fitted} |")
    return "\n".join(lines)


def lengths(shape: tuple[int, ...], mean: float, limit: int, spread: float = SPREAD) -> np.ndarray:
    """Lengths in tokens of a given mean: lognormal, cut off at a limit; always the same.

    Args:
      shape: of the result.
      mean: of what is returned, in tokens.
      limit: most tokens.
      spread: standard deviation of the logarithm before the cut.
    """
    normal = np.random.default_rng(0).standard_normal(shape)

    def drawn(location: float) -> np.ndarray:
        return np.minimum(np.exp(location + spread * normal), limit)

    location = brentq(lambda at: drawn(at).mean() - mean, 0.0, np.log(limit) + 8.0)
    return np.maximum(1, np.rint(drawn(location))).astype(int)


def seconds_a_step(outcome: Outcome, first: int) -> float:
    """Mean seconds from the end of one training step to that of the next.

    Args:
      outcome: of more than `first` steps.
      first: steps at the start that are not counted; 1 or more.
    """
    ends = [span.end for span in outcome.spans if span.who == "train"]
    return (ends[-1] - ends[first - 1]) / (len(ends) - first)
