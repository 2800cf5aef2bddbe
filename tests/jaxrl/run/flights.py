"""The completions that a tiny run trains on."""

from pathlib import Path
from typing import Any

import pytest

from jaxrl.rollout.flight import Flight
from jaxrl.run import loop
from jaxrl.types import Completion
from tests.jaxrl import tiny


def trained(directory: Path, **changes: Any) -> list[Completion]:
    """Train the tiny config with changes; the sampled completions of its steps, in order."""
    found, take = [], Flight.take

    def taken(flight, numbers):
        groups = take(flight, numbers)
        found.extend(row.completion for group in groups for row in group.rows)
        return groups

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flight, "take", taken)
        loop.train(tiny.config(directory, **changes))
    return [c for c in found if c.request.temperature]
