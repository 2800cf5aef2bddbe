"""The completions that a tiny run trains on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.rollout.flight import Flight
from jaxrl.run import loop
from jaxrl.types import Completion
from tests.jaxrl import tiny


def trained(directory: Path, **changes: Any) -> list[Completion]:
    """Train the tiny config with changes; the sampled completions of its steps, in order."""
    found, stop = [], Flight.stop

    def taken(flight):
        stop(flight)
        found.extend(row.completion for group in flight.batch.groups for row in group.rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flight, "stop", taken)
        loop.train(tiny.config(directory, **changes))
    return [c for c in found if c.request.temperature]


def contexts(c: Completion) -> Iterator[list[int]]:
    """The paths of an episode's tokens: each with the places of its tokens, to a last action."""
    start = len(c.request.prompt)
    before = np.arange(start - 1, start - 1 + len(c.tokens)) if c.parent is None else c.parent
    parent = [*range(-1, start - 1), *before.tolist()]
    for t in start + np.flatnonzero(c.actions):
        path = [t]
        while path[-1] > 0:
            path.append(parent[path[-1]])
        yield path[::-1]
