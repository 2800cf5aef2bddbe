"""The curves of a report as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxrl.printable import printable

Json = dict[str, Any]

COLORS = ("#0072b2", "#d55e00", "#00805f", "#b0568c", "#946200", "#3a8fc4", "#555555")
"""After Okabe and Ito (2008), darkened for thin lines on white; safe for colour-blind readers."""
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)), (0, (1, 1)))


def write(data: Json, folder: Path) -> list[Path]:
    """Draw every main panel of `collect.gather`, and an overview of the first six.

    Returns:
      The files: `overview.png` and one PANEL.png each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    main = [panel for panel in data["panels"] if panel["main"]]
    paths = []
    for panel in main:
        figure = Figure(figsize=(4.8, 3.2), dpi=160, layout="constrained")
        draw(figure.add_subplot(), panel, data)
        paths.append(_save(figure, folder / f"{panel['name']}.png"))
    if main:
        figure = Figure(figsize=(12, 6), dpi=130, layout="constrained")
        for i, panel in enumerate(main[:6]):
            draw(figure.add_subplot(2, 3, i + 1), panel, data, legend=i == 0)
        paths.insert(0, _save(figure, folder / "overview.png"))
    return paths


def draw(axes: Axes, panel: Json, data: Json, legend: bool = True) -> None:
    """One panel: a line for each group of seeds, with a band from their least to their greatest."""
    many = len(panel["columns"]) > 1
    for number, label in enumerate(data["groups"]):
        runs = [run for run in data["runs"] if run["group"] == number]
        for i, column in enumerate(panel["columns"]):
            curves = [run["series"][column] for run in runs if column in run["series"]]
            if not curves:
                continue
            name = f"{column}, {label}" if many else label
            if len(curves) > 1:
                name += f" ({len(curves)} seeds)"
            dash = DASHES[(i if many else number) % len(DASHES)]
            _line(axes, curves, _plain(name), COLORS[number % len(COLORS)], dash)
    axes.set_title(panel["title"], fontsize=11, loc="left", fontweight="bold")
    axes.set_xlabel("step")
    axes.set_ylabel(panel["unit"])
    axes.set_yscale("log" if panel["log"] else "linear")
    axes.grid(color="#eceef0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.lines:
        axes.legend(fontsize=8, frameon=False)


def _plain(text: str) -> str:
    """A text that is drawn as it is, without formulas and escapes."""
    literal = printable(text).replace("\\", "\N{SET MINUS}").replace("$", r"\$")
    return f"\N{ZERO WIDTH NON-JOINER}{literal}" if literal.startswith("_") else literal


def _line(axes: Axes, curves: list[Json], label: str, color: str, dash: Any) -> None:
    steps = sorted({step for curve in curves for step in curve["step"]})
    at = [dict(zip(curve["step"], curve["value"], strict=True)) for curve in curves]
    values = [[curve[step] for curve in at if step in curve] for step in steps]
    marker = "o" if len(steps) <= 30 else None
    axes.plot(
        steps,
        [np.mean(v) for v in values],
        label=label,
        color=color,
        linestyle=dash,
        marker=marker,
        markersize=3,
        linewidth=1.5,
    )
    if len(curves) > 1:
        low, high = [min(v) for v in values], [max(v) for v in values]
        axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    elif "low" in curves[0]:
        bounds = curves[0]["low"], curves[0]["high"]
        bounded_steps = [step for step in steps if all(str(step) in bound for bound in bounds)]
        low, high = ([bound[str(step)] for step in bounded_steps] for bound in bounds)
        axes.vlines(bounded_steps, low, high, color=color, linewidth=1)


def _save(figure: Figure, path: Path) -> Path:
    with path.open("wb") as file:
        figure.savefig(file, format=path.suffix[1:])
    return path
