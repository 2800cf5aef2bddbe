"""The picture of the page: each method less the fair baseline, as an SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from experiments.effects import verdicts

COLOURS = {
    "effect": "#1a7f37", "contrary": "#b42318", "equivalent": "#475467", "undecided": "#98a2b3",
}  # fmt: skip
SPAN = 8.0
"""Minimum effects on each side of 0."""
_LEFT, _PLOT, _ROW = 210, 420, 13


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """Each method's effect over the minimum effect, sorted by family; right is the claimed side.

    Full marks are of the own regime; hollow ones, without intervals, of other tasks; a cross is a
    baseline with a handicap, and a dashed line one that was run on development seeds alone.
    """
    families = dict[str, list[tuple[float, str]]]()
    methods = verdicts.by_method(rows)
    for name, own in methods.items():
        row = verdicts.fair_row(own)
        families.setdefault(own[0]["family"], []).append((-_value(row), name))
    height = _ROW * (len(methods) + len(families)) + 46
    marks, y = [_frame(height)], 12
    for family in sorted(families, key=lambda name: (-len(families[name]), name)):
        marks.append(f'<text x="4" y="{y + 3}" class="f">{html.escape(family)}</text>')
        y += _ROW
        for _, name in sorted(families[family]):
            marks.append(f'<text x="14" y="{y + 3}">{html.escape(name[:36])}</text>')
            marks += [_elsewhere(row, y) for row in methods[name]
                      if row["best"] and row["measured"] and row["task"] != "regime"]  # fmt: skip
            marks.append(_line(verdicts.fair_row(methods[name]), y))
            y += _ROW
    ticks = "".join(
        f'<text x="{_x(t):.0f}" y="{height - 24}" text-anchor="middle">{t:+d}</text>'
        for t in (-8, -4, -1, 1, 4, 8)
    )
    note = (
        f'<text x="4" y="{height - 8}">method less fair baseline, in minimum effects (0.03 of a '
        "pass rate); hollow: other tasks; ×: the baseline has a handicap; dashed: development seeds"
        "</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _PLOT + 10} {height}" '
        f'role="img" aria-label="Each method less the fair baseline">{_STYLE}{"".join(marks)}'
        f"{ticks}{note}</svg>\n"
    )


_STYLE = "<style>text{font:9px sans-serif;fill:#1d2939}.f{font-weight:bold}</style>"


def _frame(height: int) -> str:
    low, high, bottom = _x(-1), _x(1), height - 36
    return (
        f'<rect width="100%" height="100%" fill="#fff"/><rect x="{low:.1f}" width='
        f'"{high - low:.1f}" height="{bottom}" fill="#f2f4f7"/><line x1="{_x(0):.1f}" x2='
        f'"{_x(0):.1f}" y2="{bottom}" stroke="#667085"/>'
    )


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    """Effect and interval of a row: measured, or on the development seeds."""
    return row if row["measured"] else row["development"]


def _value(row: dict[str, Any] | None) -> float:
    """Where a row stands, on the claimed side if positive; 0 where nothing is known."""
    compared = row and _compared(row)
    return _scaled(row, compared["effect"]) if row and compared else 0.0


def _scaled(row: dict[str, Any], value: float) -> float:
    return (-1 if row["better"] == "lower" else 1) * value / row["minimum"]


def _x(value: float) -> float:
    return _LEFT + _PLOT / 2 * (1 + max(-SPAN, min(SPAN, value)) / SPAN)


def _elsewhere(row: dict[str, Any], y: int) -> str:
    colour = COLOURS[row["status"]]
    return (
        f'<circle cx="{_x(_value(row)):.1f}" cy="{y}" r="2" fill="none" stroke="{colour}">'
        f"<title>{html.escape(row['task'])}</title></circle>"
    )


def _line(row: dict[str, Any] | None, y: int) -> str:
    compared = row and _compared(row)
    if not row or not compared:
        return ""
    low, high = sorted(_scaled(row, end) for end in compared["interval"])
    x, colour = _x(_value(row)), COLOURS[row["status"]]
    dash = "" if row["measured"] else ' stroke-dasharray="2 2"'
    tip = f"{row['other']}: {compared['effect']:+.3f} {compared['interval']}, {row['status']}"
    mark = f'<circle cx="{x:.1f}" cy="{y}" r="3" fill="{colour}"/>'
    if row["handicap"]:
        mark = f'<path d="M{x - 3:.1f} {y - 3}l6 6m0-6l-6 6" stroke="{colour}" stroke-width="2"/>'
    elif not row["measured"]:
        mark = f'<circle cx="{x:.1f}" cy="{y}" r="3" fill="#fff" stroke="{colour}"/>'
    return (
        f'<g><title>{html.escape(tip)}</title><line x1="{_x(low):.1f}" x2="{_x(high):.1f}" '
        f'y1="{y}" y2="{y}" stroke="{colour}" stroke-width="1.5"{dash}/>{mark}</g>'
    )
