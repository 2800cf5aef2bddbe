"""The parts in order of value, each with the time that it may take."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Part:
    """One process of the measurement."""

    name: str
    """Of its JSON file."""
    where: str
    """`module:function`, called with the settings and a report."""
    limit: float
    """Seconds after which it is stopped."""
    least: float
    """It is skipped where fewer seconds are left."""
    lane: Literal["device", "host"] = "device"
    """Parts of the lane `host` need no accelerator and run beside the others."""
    shares: bool = False
    """Another program of the part uses the device too, so JAX must not take its memory whole."""


_HERE = "tests.accelerator"
PARTS = (
    Part("imports", f"{_HERE}.imports:measure", 40, 1),
    Part("plan", f"{_HERE}.plans:measure", 200, 10, "host"),
    Part("device", f"{_HERE}.device:measure", 45, 10),
    Part("kernels", f"{_HERE}.kernels:measure", 50, 15),
    Part("parity", f"{_HERE}.parity:measure", 65, 20),
    Part("grpo-0.6b-full", f"{_HERE}.grpo:small_full", 150, 30),
    Part("exact", f"{_HERE}.exact:measure", 65, 20, shares=True),
    Part("peer", f"{_HERE}.peer:measure", 95, 30, shares=True),
    Part("grpo-0.6b-lora", f"{_HERE}.grpo:small_lora", 60, 25),
    Part("grpo-1.7b-full", f"{_HERE}.grpo:large_full", 90, 35),
    Part("sampler", f"{_HERE}.sampler:measure", 75, 25),
    Part("tuning", f"{_HERE}.tuning:measure", 75, 25),
    Part("grpo-1.7b-lora", f"{_HERE}.grpo:large_lora", 75, 35),
    Part("smollm2", f"{_HERE}.grpo:packaged", 60, 5),
    Part("small", f"{_HERE}.small:measure", 90, 15, shares=True),
)
"""All parts. Limits are of the real measurement; a rehearsal has those of `REHEARSAL`."""

REHEARSAL = 0.5
"""Share of the budget that any part of a rehearsal may take."""


def named(names: list[str]) -> list[Part]:
    """The parts of these names, in the order of `PARTS`; all where no names are given.

    Raises:
      ValueError: a name that is no part's.
    """
    if unknown := sorted(set(names) - {part.name for part in PARTS}):
        known = ", ".join(part.name for part in PARTS)
        raise ValueError(f"--parts {' '.join(unknown)}: no such part; choose among {known}")
    return [part for part in PARTS if not names or part.name in names]
