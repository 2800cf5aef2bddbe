"""The page of `effects --html`: forest plots and learning curves."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.effects import table
from experiments.effects.picture import COLOURS
from experiments.lab import archive

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1d2939; background: #fff; }
h1, h2, h3 { line-height: 1.2; } table { border-collapse: collapse; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid #e4e7ec; text-align: left; }
svg text { font: 12px system-ui, sans-serif; fill: #1d2939; } figure { margin: 1rem 0; }
figcaption { color: #475467; }
"""
_PLOT, _ROW, _SPAN = 480, 22, 6.0
"""Width of a forest plot beside its labels, height of a row, and minimum effects on each side."""
_GLYPH = 7
"""Width that a character of a label takes at most, on average."""


def page(
    rows: Sequence[dict[str, Any]], results: Path, headline: str, scales: Sequence[Sequence[str]]
) -> str:
    """The page.

    Args:
      rows: of the table, see `python -m experiments effects --json`.
      results: directory whose `arms` hold the learning curves.
      headline: what the lab's effects say of those on the real model.
      scales: cells of the table of methods at both scales, its header first.
    """
    parts = [
        "<h1>Effects</h1>",
        f"<p><strong>{html.escape(headline)}</strong></p>",
        _scales(scales),
        _legend(rows),
    ]
    for family in sorted({row["family"] for row in rows}):
        own = [row for row in rows if row["family"] == family]
        measured = [row for row in own if row["measured"]]
        parts.append(f"<h2>{html.escape(family.capitalize())}</h2>")
        missing = sorted({f"{row['id']} ({row['task']})" for row in own if not row["measured"]})
        if missing:
            parts.append(f"<p>Not measured yet: {html.escape(', '.join(missing))}.</p>")
        if measured:
            parts += [
                forest(measured),
                _commands(measured),
                *_curves(measured, results),
            ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>jaxrl: effects</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def forest(rows: Sequence[dict[str, Any]]) -> str:
    """A forest plot: effects in units of the minimum effect, on the side of the claim if positive.

    Full marks are significant after the correction, hollow ones are not. What goes beyond the plot
    ends in an arrow at its edge.
    """
    labels = [f"{row['id']} ({row['task']}) against {row['other']}" for row in rows]
    left = _GLYPH * max(map(len, labels)) + 10
    zero, unit, width = left + _PLOT / 2, (_PLOT / 2 - 10) / _SPAN, left + _PLOT
    height = _ROW * len(rows) + 40

    def x(value: float) -> float:
        return zero + unit * max(-_SPAN, min(_SPAN, value))

    marks = [
        f'<rect x="{x(-1):.1f}" y="0" width="{x(1) - x(-1):.1f}" height="{height - 30}" '
        'fill="#f2f4f7"/>',
        f'<line x1="{zero}" x2="{zero}" y1="0" y2="{height - 30}" stroke="#667085"/>',
    ]
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y, sign = _ROW * place + 14, _sign(row)
        low, mean, high = (
            sign * value / row["minimum"]
            for value in (row["interval"][0], row["effect"], row["interval"][1])
        )
        colour = COLOURS[row["status"]]
        fill = colour if row["status"] in ("effect", "contrary") else "#fff"
        tip = f"{label}: {row['effect']:+.4f}, interval {row['interval']}, {row['status']}"
        mark = f'<circle cx="{x(mean):.1f}" cy="{y}" r="5"'
        if abs(mean) > _SPAN:
            mark = f'<path class="beyond" d="{_arrow(x(mean), y, mean)} z"'
        ends = [
            f'<path class="further" d="{_arrow(x(end), y, end)}" stroke="{colour}" '
            'stroke-width="2" fill="none"/>'
            for end in (low, high)
            if abs(end) > _SPAN and end * mean <= _SPAN * abs(end)
        ]
        marks.append(
            f'<g><title>{html.escape(tip)}</title><text x="0" y="{y + 4}">'
            f"{html.escape(label)}</text>"
            f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}" stroke="{colour}" '
            f'stroke-width="2"/>{"".join(ends)}{mark} stroke="{colour}" stroke-width="2" '
            f'fill="{fill}"/></g>'
        )
    ticks = [
        f'<text x="{x(t):.1f}" y="{height - 12}" text-anchor="middle">{t:+d}</text>'
        for t in (-6, -3, -1, 1, 3, 6)
    ]
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="Forest plot">'
        f"{''.join(marks + ticks)}</svg><figcaption>Effect over the minimum effect of interest; "
        "right is the claimed side. The band is plus and minus the minimum. Full marks are "
        "decided, those of descriptive rows without a correction. An arrow at the edge says that "
        "an effect or its "
        f"interval goes beyond {_SPAN:.0f} minima; the tooltip of a row has its figures."
        "</figcaption></figure>"
    )


def _arrow(tip: float, y: float, side: float) -> str:
    """The path of an arrowhead that points away from 0."""
    back = tip - (8 if side > 0 else -8)
    return f"M {back:.1f} {y - 5} L {tip:.1f} {y} L {back:.1f} {y + 5}"


def curves(lines: dict[str, tuple[Sequence[float], Sequence[float]]], statistic: str) -> str:
    """Learning curves: name -> (steps, values)."""
    steps = [s for xs, _ in lines.values() for s in xs]
    values = [v for _, ys in lines.values() for v in ys]
    low, high = min(values), max(values)
    span, last = (high - low) or 1.0, max(steps)
    colours = (
        "#1d4ed8", "#b45309", "#1a7f37", "#7c3aed", "#b42318", "#0e7490", "#475569", "#be185d",
    )  # fmt: skip
    drawn = []
    for number, (name, (xs, ys)) in enumerate(lines.items()):
        colour = colours[number % len(colours)]
        points = " ".join(
            f"{40 + 300 * s / last:.1f},{150 - 130 * (v - low) / span:.1f}"
            for s, v in zip(xs, ys, strict=True)
        )
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="360" y="{24 + 18 * number}" style="fill:{colour}">'
            f"{html.escape(name)}: {ys[-1]:.3f}</text>"
        )
    return (
        '<svg viewBox="0 0 720 180" role="img" aria-label="Learning curves">'
        f'<text x="0" y="24">{high:.2f}</text><text x="0" y="154">{low:.2f}</text>'
        f'<text x="40" y="172">{html.escape(statistic)} over {last} steps</text>'
        f"{''.join(drawn)}</svg>"
    )


def _curves(rows: Sequence[dict[str, Any]], results: Path) -> Iterable[str]:
    for identity, task in sorted({(row["id"], row["task"]) for row in rows}):
        own = [row for row in rows if (row["id"], row["task"]) == (identity, task)]
        lines = {"method": _curve(own[0]["arms"][0], own[0]["statistic"], results)}
        for row in own:
            lines[row["other"]] = _curve(row["arms"][1], row["statistic"], results)
        lines = {name: line for name, line in lines.items() if line}
        if lines:
            caption = f"{identity}, {task}: mean over seeds of the last look"
            yield f"<figure>{curves(lines, own[0]['statistic'])}<figcaption>{html.escape(caption)}"
            yield "</figcaption></figure>"


def _curve(
    keys: Sequence[str], statistic: str, results: Path
) -> tuple[list[int], list[float]] | None:
    figures = archive.read(results, keys[-1]) if keys else None
    if figures is None:
        return None
    values = figures["curves"].get(statistic)
    return values and (figures["marks"], np.mean(values, axis=1).tolist())


def _commands(rows: Sequence[dict[str, Any]]) -> str:
    """For each row its figures, its plan's power and the command that runs it again."""
    lines = "".join(
        f"<tr><td>{html.escape(table.marked(row))}<td>{html.escape(row['task'])}"
        f"<td>{html.escape(row['against'])}: {html.escape(row['other'])}"
        f"<td>{row['effect']:+.3f}<td>{html.escape(table.said(row))}<td>{row['seeds']}"
        f"<td>{table.power(row)}<td>{row['achieved_power']:.2f}"
        f"<td><code>{html.escape(row['command'])}</code>"
        for row in rows
    )
    head = "".join(
        f"<th>{name}"
        for name in (
            "method",
            "task",
            "against",
            "effect",
            "status",
            "seeds",
            "planned power",
            "achieved power",
            "run again",
        )
    )
    return f"<details><summary>Rows</summary><table><tr>{head}{lines}</table></details>"


def _scales(cells: Sequence[Sequence[str]]) -> str:
    """The table of methods at both scales; nothing without methods."""
    if len(cells) < 2:
        return ""
    lines = [
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}" for cell in line)
        for tag, line in zip(["th"] + ["td"] * (len(cells) - 1), cells, strict=True)
    ]
    return f"<table>{''.join(lines)}</table>"


def _sign(row: dict[str, Any]) -> int:
    return -1 if row.get("better") == "lower" else 1


def _legend(rows: Sequence[dict[str, Any]]) -> str:
    measured = [row for row in rows if row["measured"]]
    count = len({row["id"] for row in measured})
    total = len({row["id"] for row in rows})
    lost = " ".join(table.lost_sentence(measured))
    counts = ", ".join(f"{sum(row['status'] == s for row in measured)} {s}" for s in COLOURS)
    return (
        f"<p>{count} of {total} methods are measured under the protocol; of their rows, {counts}. "
        f"A row that is not measured is in no plot. {html.escape(lost)}</p>"
    )
