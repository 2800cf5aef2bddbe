"""`jaxrl weights A B [--json] [--plot FILE]`: what training changed in the weights, by layer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.publish import export
from jaxrl.launch.settings import flags
from jaxrl.models import changes
from jaxrl.models.changes import Change

_SHOWN = ("unchanged", "relative_norm", "spectral_shift", "angle")


@dataclasses.dataclass(frozen=True)
class WeightsConfig:
    """How two models are compared."""

    rank: int = 16
    """Leading singular vectors that span the compared spaces, at most half of a matrix's."""
    json: bool = False
    """Print one JSON object, with every matrix of every layer."""
    plot: str = ""
    """PNG file to write, with each figure by layer; empty: none."""
    trust: bool = False
    """Accept functions of other packages that a run's config names; they are executed."""


def main(argv: list[str]) -> int:
    """Compare the weights of two runs or models of one shape."""
    names, rest = flags.leading(argv)
    try:
        if len(names) != 2 and not {"-h", "--help"} & set(rest):
            raise ValueError("name two runs or models: jaxrl weights BEFORE AFTER")
        settings = flags.parse(WeightsConfig(), rest, prog="jaxrl weights BEFORE AFTER")
        weight_changes = compared(names[0], names[1], settings)
    except REFUSALS as error:
        return refused(error)
    if settings.plot:
        plot(weight_changes, Path(settings.plot))
    if settings.json:
        print(json.dumps(summary(weight_changes), indent=2))
    else:
        _show(weight_changes, Console())
    return 0


def compared(before: str, after: str, settings: WeightsConfig) -> list[Change]:
    """The changes from one run or model to another, adapters merged.

    Raises:
      FileNotFoundError: no such run or model.
      ValueError: they have different shapes.
    """
    old_source, new_source = (
        export.open_source(name, None, trust=settings.trust) for name in (before, after)
    )
    params = [export.merged(source) for source in (old_source, new_source)]
    shapes = [changes.shapes(tree) for tree in params]
    if shapes[0] != shapes[1]:
        differ = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))
        raise ValueError(f"{before!r} and {after!r} have different shapes: {differ[:4]}")
    return changes.changes(old_source.model, *params, rank=settings.rank)


def summary(weight_changes: Sequence[Change]) -> dict[str, Any]:
    """The figures of the whole model, of each layer and of each matrix, as JSON-able values."""
    layers = sorted({change.layer for change in weight_changes if change.layer is not None})
    return {
        "whole": _mean(weight_changes),
        "layers": [
            {"layer": n, **_mean([change for change in weight_changes if change.layer == n])}
            for n in layers
        ],
        "outside": {
            change.name: _mean([change]) for change in weight_changes if change.layer is None
        },
        "parameters": [change._asdict() for change in weight_changes],
    }


def _mean(weight_changes: Sequence[Change]) -> dict[str, float | None]:
    """The unchanged share over all entries, and means of the others over matrices."""
    sizes = np.array([change.size for change in weight_changes])
    unchanged = np.array([change.unchanged for change in weight_changes])
    out: dict[str, float | None] = {"unchanged": float(np.average(unchanged, weights=sizes))}
    for name in _SHOWN[1:]:
        values = [v for change in weight_changes if (v := getattr(change, name)) is not None]
        out[name] = float(np.mean(values)) if values else None
    return out


def _show(weight_changes: Sequence[Change], console: Console) -> None:
    report = summary(weight_changes)
    table = Table("layer", "unchanged in bf16", "change / norm", "spectral shift", "angle, degrees")

    def row(name: str, figures: dict[str, Any]) -> None:
        values = (figures[field] for field in _SHOWN)
        table.add_row(name, *("" if v is None else f"{v:.4g}" for v in values))

    for layer in report["layers"]:
        row(str(layer["layer"]), layer)
    for name, figures in report["outside"].items():
        row(name, figures)
    row("all", report["whole"])
    console.print(table)


def plot(weight_changes: Sequence[Change], path: Path) -> None:
    """Draw each figure of each matrix by layer, as a PNG file."""
    from matplotlib.figure import Figure  # takes its time, so only where it is asked for

    titles = ("equal in bf16, share", "change / norm", "spectral shift", "principal angle, degrees")
    names = sorted(
        {
            change.name
            for change in weight_changes
            if change.spectral_shift is not None and change.layer is not None
        }
    )
    figure = Figure(figsize=(11, 7), dpi=140, layout="constrained")
    for place, (title, field) in enumerate(zip(titles, _SHOWN, strict=True), 1):
        axes = figure.add_subplot(2, 2, place)
        for name in names:
            series = [change for change in weight_changes if change.name == name]
            axes.plot(
                [change.layer for change in series], [getattr(change, field) for change in series],
                marker="o", markersize=3, label=name.partition("/")[2],
            )  # fmt: skip
        axes.set(title=title, xlabel="layer")
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
