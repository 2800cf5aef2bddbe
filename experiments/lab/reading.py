"""How recorded rows are read: corrected, and why some of them decide nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lab import archive, files, statistics, views
from experiments.lab.effect import Effect
from experiments.lab.statistics import Comparison, Status
from experiments.lab.tuning import GUARD, RANGE

BUDGET = 0.1
"""Tokens or updates of two arms that differ by more than this share are no equal budgets."""


def of_arms(row: dict[str, Any], effect: Effect, results: Path) -> dict[str, list[list[str]]]:
    """`digests` and `machines` of the figures that a row compares, of the method and the other arm.

    A digest is of what the row reads: the row's statistic, a number a seed. Where an arm's figures
    are not kept, its key stands for the digest, and there is no machine.

    Args:
      row: as recorded.
      effect: of the method, on the row's task.
      results: directory whose `arms` hold the figures.
    """
    kept = _kept(row, results)
    machines = [{each["machine"] for each in arm if "machine" in each} for arm in kept]

    def digest(arm: dict[str, Any]) -> str:
        values = arm.get(effect.over, {}).get(row["statistic"])
        return arm["digest"] if values is None else files.digest(values)

    return {
        "digests": [[digest(each) for each in arm] for arm in kept],
        "machines": [sorted(arm) for arm in machines],
    }


def at_updates(row: dict[str, Any], effect: Effect, results: Path) -> dict[str, Any] | None:
    """The comparison at equal updates; None where they are equal or a figure is not kept.

    Args:
      row: as recorded.
      effect: of the method, on the row's task.
      results: directory whose `arms` hold the figures.
    """
    if abs(row["updates"] - 1) <= BUDGET:
        return None
    mine, other = _kept(row, results)
    if any("curves" not in each for each in (*mine, *other)):
        return None
    return views.at_equal("updates", effect, mine, other, row["comparison"]["level"])


def _kept(row: dict[str, Any], results: Path) -> list[list[dict[str, Any]]]:
    """The figures of the method's arms and of the others'."""
    return [[archive.read(results, key) or {"digest": key} for key in keys] for keys in row["arms"]]


def corrected(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with `p`, `p_same`, `status`, `why`, `tests` and what became of their `role`.

    The primary rows of all methods are corrected together, by Benjamini and Hochberg, differences
    and equivalence each. Then the baseline rows of those methods whose primary row is an effect
    are. Every other row is descriptive: its p values are as they are, and `tests` is 1. Rows that
    compare the same figures by the same statistic are one test, and count once.

    Args:
      rows: as recorded, with `id`, `role` (`primary`, `baseline` or `descriptive`), the `digests`
        of their arms (`of_arms`) and `at_updates`.
    """
    out = [dict(row) for row in rows]
    _correct([row for row in out if row["role"] == "primary"])
    shown = {row["id"] for row in out if row["role"] == "primary" and row["status"] == "effect"}
    for row in out:
        if row["role"] == "baseline" and row["id"] not in shown:
            row["role"] = "descriptive"
    _correct([row for row in out if row["role"] == "baseline"])
    for row in out:
        if row["role"] == "descriptive":
            _correct([row])
    return out


def _correct(rows: Sequence[dict[str, Any]]) -> None:
    """Write into rows what they say, corrected as one set of tests."""
    names = [_test(row) for row in rows]
    tests = {name: Comparison(**row["comparison"]) for name, row in zip(names, rows, strict=True)}
    different, equivalent = (
        dict(zip(tests, statistics.benjamini_hochberg(p), strict=True))
        for p in ([c.p for c in tests.values()], [c.p_same for c in tests.values()])
    )
    for test, row in zip(names, rows, strict=True):
        status, why = _read(row, tests[test], different[test], equivalent[test])
        row |= {"p": different[test], "p_same": equivalent[test], "tests": len(tests)}
        row |= {"status": status, "why": why}


def _test(row: dict[str, Any]) -> str:
    """What a row tests: the same for rows that compare the same figures by the same statistic."""
    return json.dumps([row["digests"], row["statistic"], row["comparison"]])


def _read(
    row: dict[str, Any], comparison: Comparison, different: float, equivalent: float
) -> tuple[Status, str]:
    """The status of a row, and why it is undecided where its p values would decide it."""
    given = {"better": row["better"], "equivalent": equivalent}
    found = statistics.status(comparison, different, **given)
    guard = row["guard"] and Comparison(**row["guard"])
    if found == "undecided":
        small = different < statistics.LEVEL and comparison.p_same < statistics.LEVEL
        return found, "shown to be small before the correction alone" if small else ""
    if not _has_room(row, found):
        return "undecided", "no room"
    if statistics.status(comparison, different, guard=guard, minimum=GUARD, **given) != found:
        return "undecided", "accuracies differ"
    return _at_equal_budgets(row, comparison, found)


def _has_room(row: dict[str, Any], found: Status) -> bool:
    """Whether the other arm left room for an effect of the minimum, or the method was worse.

    A difference between two arms of which neither succeeds says nothing either.
    """
    if not row["statistic"].startswith("pass@"):
        return True
    _, other = row["means"]
    return max(row["means"]) >= RANGE[0] and (found == "contrary" or 1 - other >= row["minimum"])


def _at_equal_budgets(
    row: dict[str, Any], comparison: Comparison, found: Status
) -> tuple[Status, str]:
    """A decided status, or why the budgets of the arms leave the row undecided."""
    for budget in ("updates", "tokens"):
        if abs(row[budget] - 1) <= BUDGET:
            continue
        view = row[f"at_{budget}"]
        if view is None:
            return "undecided", f"no view at equal {budget}"
        equal = Comparison(**view)
        agrees = (
            max(-equal.low, equal.high) < row["minimum"]
            if found == "equivalent"
            else min(equal.low * comparison.effect, equal.high * comparison.effect) > 0
        )
        if not agrees:
            return "undecided", f"otherwise at equal {budget}"
    return found, ""
