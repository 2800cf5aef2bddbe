"""How a run reports to trackers, see `jaxrl.record.trackers`."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class TrackConfig:
    """How a run appears in the trackers that it reports to."""

    entity: str = ""
    """Weights & Biases team or user; empty: the default of the account."""
    name: str = ""
    """Name of the run; empty: that of its directory."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    completions: int = 16
    """Rows of a table of completions; 0: no table."""
    every: int = 10
    """Steps between two tables; the first step has one too."""
