"""`jaxrl agreement FILE --raters A,B[,C]`: how far judges agree with each other, or with people."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxrl.data.selection import agreement
from jaxrl.data.selection.agreement import Level
from jaxrl.data.sources import records
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.settings import flags


@dataclasses.dataclass(frozen=True)
class AgreementConfig:
    """Agreement of the ratings in two or more columns of a file."""

    raters: str = ""
    """Columns with a number for each row, separated by commas; an empty cell is no rating."""
    level: Level = "nominal"
    """What differences mean: `nominal` (equal or not), `ordinal` (order), `interval` (size)."""
    json: bool = False
    """Print the figures as JSON."""


def main(argv: list[str]) -> int:
    """Print Krippendorff's alpha of all raters and Cohen's kappa of each pair."""
    usage, what = "jaxrl agreement FILE", "a file of rows, one column for each rater"
    try:
        path, config = flags.name_and_settings(AgreementConfig(), argv, usage=usage, what=what)
        report = figures(path, [n.strip() for n in config.raters.split(",") if n], config.level)
    except REFUSALS as error:
        return refused(error)
    if config.json:
        print(json.dumps(report))
        return 0
    table = Table("raters", "rated by both", "equal", "kappa")
    for pair in report["pairs"]:
        table.add_row(
            " and ".join(pair["raters"]),
            str(pair["items"]),
            *map(_shown, (pair["equal"], pair["kappa"])),
        )
    console = Console()
    console.print(table)
    console.print(f"Krippendorff's alpha ({config.level}): {_shown(report['alpha'])}")
    return 0


def figures(path: str, raters: list[str], level: Level) -> dict[str, Any]:
    """Agreement of the columns of a file.

    Args:
      path: of the rows, see `jaxrl.data.sources.records`.
      raters: two or more columns.
      level: what differences mean.

    Returns:
      `alpha`, and `pairs`, each with `raters`, `items` that both rated, the share that is `equal`,
      and `kappa`. None where a figure is not defined.

    Raises:
      ValueError: fewer than two columns, a column that is not there, or a cell that is no number.
    """
    if len(raters) < 2:
        raise ValueError(
            f"raters={','.join(raters)!r}: name two columns or more, as in --raters a,b"
        )
    rows = records.read(path)
    ratings = np.array([[_rating(rows[i], name, i) for i in range(len(rows))] for name in raters])
    pairs = []
    for a, b in itertools.combinations(range(len(raters)), 2):
        both = ~np.isnan(ratings[[a, b]]).any(axis=0)
        pairs.append(
            {
                "raters": [raters[a], raters[b]],
                "items": int(both.sum()),
                "equal": _finite(np.mean((ratings[a] == ratings[b])[both])) if both.any() else None,
                "kappa": _finite(agreement.cohen_kappa(ratings[a], ratings[b], level)),
            }
        )
    return {"alpha": _finite(agreement.krippendorff_alpha(ratings, level)), "pairs": pairs}


def _rating(row: Mapping[str, Any], name: str, index: int) -> float:
    if name not in row:
        raise ValueError(f"record {index}: no column {name!r}; it has {', '.join(row)}")
    if row[name] is None or row[name] == "":
        return float("nan")
    try:
        return float(row[name])
    except (TypeError, ValueError) as error:
        raise ValueError(f"record {index}: {name}={row[name]!r:.40} is no number") from error


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
