"""What each chip can do, in one table, and where every number in it comes from.

A number is `stated` by the chip's maker, `measured` on a card, or `assumed`. No number of the table
has been measured. `jaxrl.launch.planning.measurement` replaces those that a file of
`python -m tests.accelerator` holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["stated", "measured", "assumed"]


class Source(NamedTuple):
    """Where a number comes from."""

    kind: Kind
    origin: str
    """The document of the maker; the day and the card of a measurement; why it is assumed."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.origin}"


class Figure(NamedTuple):
    """A number of a chip, with its source."""

    value: float
    source: Source


class Curve(NamedTuple):
    """Which share of a chip's arithmetic a product reaches, by its rows, with the source."""

    points: tuple[tuple[float, float], ...]
    """Rows of the left factor (tokens, or slots of a sampler), increasing, and the share there."""
    source: Source

    def at(self, rows: float) -> float:
        """The share at a number of rows: linear in its logarithm, constant outside the points."""
        sizes, shares = zip(*self.points, strict=True)
        return float(np.interp(np.log(max(1.0, rows)), np.log(sizes), shares))


class Chip(NamedTuple):
    """A device."""

    hbm: Figure
    """Bytes of memory."""
    flops: Figure
    """bf16 operations a second, dense."""
    bandwidth: Figure
    """Bytes a second from memory."""
    wire: Figure
    """Bytes a second to its neighbours, each way: ICI or NVLink. Networks of hosts are slower."""
    efficiency: Curve
    """Share of `flops` that a product reaches, by its rows."""


_GIB = 2.0**30
_BEST = Curve(((1.0, 1.0),), Source("assumed", "the peak at every shape, as nothing was measured"))
_TPU = "docs.cloud.google.com/tpu/docs"
_GPU = "NVIDIA's data sheet, SXM, without sparsity"


def _stated(origin: str, hbm: float, flops: float, bandwidth: float, wire: float) -> Chip:
    source = Source("stated", origin)
    return Chip(*(Figure(value, source) for value in (hbm, flops, bandwidth, wire)), _BEST)


CHIPS: Mapping[str, Chip] = {
    "v4": _stated(f"{_TPU}/v4", 32 * _GIB, 275e12, 1.228e12, 300e9),
    "v5e": _stated(f"{_TPU}/v5e", 16 * _GIB, 197e12, 0.819e12, 200e9),
    "v5p": _stated(f"{_TPU}/v5p", 95 * _GIB, 459e12, 2.765e12, 600e9),
    "v6e": _stated(f"{_TPU}/v6e", 32 * _GIB, 918e12, 1.638e12, 400e9),
    "a100": _stated(_GPU, 80 * _GIB, 312e12, 2.039e12, 300e9),
    "h100": _stated(_GPU, 80 * _GIB, 989e12, 3.35e12, 450e9),
    "h200": _stated(_GPU, 141e9, 989e12, 4.8e12, 450e9),
    "b200": _stated(_GPU, 180e9, 2250e12, 8.0e12, 900e9),
}
"""By the name that `--topology` takes. Makers state wires both ways; half of that stands here."""

_DEVICES = {
    r"TPU v4$": "v4",
    r"TPU v5 ?lite|TPU v5e": "v5e",
    r"TPU v5p?$": "v5p",
    r"TPU v6 ?lite|TPU v6e": "v6e",
    r"A100.*80GB": "a100",
    r"H100(?!.*(PCIe|NVL))": "h100",
    r"H200(?!.*NVL)": "h200",
    r"B200": "b200",
}
"""Patterns of what JAX and drivers call a device."""


def name_of(device: str) -> str | None:
    """The key of `CHIPS` for what JAX or the driver calls a device; None if none is of it."""
    return next((name for pattern, name in _DEVICES.items() if re.search(pattern, device)), None)


def describe(name: str, chip: Chip) -> list[str]:
    """Lines that tell a chip's numbers, each with its source."""
    hbm, flops, bandwidth, wire, efficiency = chip
    sources_of = {
        f"{hbm.value / 2**30:.0f} GiB": hbm.source,
        f"{flops.value / 1e12:.0f} Tflop/s in bf16": flops.source,
        f"{bandwidth.value / 1e9:.0f} GB/s from memory": bandwidth.source,
        f"{wire.value / 1e9:.0f} GB/s to neighbours": wire.source,
    }
    if len(efficiency.points) == 1:
        share = f"{efficiency.points[0][1]:.0%} of its arithmetic in products of any shape"
    else:
        curve = ", ".join(f"{part:.0%} of {rows:.0f}" for rows, part in efficiency.points)
        share = f"in products, by rows, of its arithmetic {curve}"
    sources_of[share] = efficiency.source
    lines = []
    for source in dict.fromkeys(sources_of.values()):
        texts = (text for text, origin in sources_of.items() if origin == source)
        lines.append(f"a {name} has {', '.join(texts)} ({source})")
    return lines
