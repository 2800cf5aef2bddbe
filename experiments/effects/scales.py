"""Effects at two scales: in the lab, and on the real model by the runs of `effects_real`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.effects import real as effects_real
from experiments.effects import table as effects_table
from experiments.lab import archive, scales


def compared() -> list[dict[str, Any]]:
    """For each method of the plan, its effect at both scales, None where there is none yet."""
    plan, out = effects_real.planned(), []
    runs = effects_real.runs(plan)
    lab = in_the_lab(plan["methods"])
    for name in plan["methods"]:
        values, tokens = (
            [[run[figure] for run in runs[n]] for n in (name, effects_real.BASELINE)]
            for figure in (effects_real.STATISTIC, "tokens")
        )
        done = [len(runs[n]) for n in (name, effects_real.BASELINE)]
        out.append(
            {
                "id": effects_table.identity(name),
                "lab": lab.get(name),
                "real": scales.difference(*values) if all(done) else None,
                "tokens": float(np.mean(tokens[0]) / np.mean(tokens[1])) if all(done) else None,
                "seeds": done[0],
                "complete": done == [plan["seeds"]["method"], plan["seeds"]["baseline"]],
            }
        )
    return out


def in_the_lab(methods: Sequence[str]) -> dict[str, float]:
    """Effects in the lab, as on the real model: final accuracy of the method less GRPO's.

    Those of the recorded rows' arms, whatever the rows' own statistic over the run.
    """
    out, wanted = {}, (effects_real.TASK, effects_real.AGAINST)
    every = [
        row
        for row in effects_table.rows(methods)
        if row["measured"] and (row["task"], row["against"]) == wanted
    ]
    for name in methods:
        rows = [row for row in every if row["id"] == effects_table.identity(name)]
        if whole := [row for row in rows if row["other"] == "all"] or rows:
            mine, other = (_final(keys) for keys in whole[0]["arms"])
            out[name] = float(np.mean(mine) - np.mean(other))
    return out


def _final(keys: Sequence[str]) -> np.ndarray:
    kept = [archive.read(effects_table.RESULTS, key) for key in keys]
    return np.concatenate([figures["final"][effects_real.STATISTIC] for figures in kept if figures])


def headline() -> str:
    """How far the runs are, the rank correlation once all are there, and what can be expected."""
    plan, rows = effects_real.planned(), compared()
    runs = effects_real.runs(plan)
    done = f"{sum(map(len, runs.values()))} of {len(effects_real.wanted(plan))} runs"
    both = [row for row in rows if row["complete"] and row["lab"] is not None]
    found = scales.correlation(
        {row["id"]: row["lab"] for row in both}, {row["id"]: row["real"].effect for row in both}
    )
    if len(both) < len(rows):
        text = (
            f"{done}, interim: {len(both)} of {len(rows)} methods; the correlation is computed "
            "once all are there."
        )
    elif found is None:
        text = f"{done}, no correlation: {scales.FEWEST} methods of different effects are needed."
    else:
        text = (
            f"Rank correlation of the effects of {found.methods} methods in the lab and on "
            f"SmolLM2-135M: {found.rho:.2f} [{found.low:.2f}, {found.high:.2f}], p {found.p:.3f} "
            f"({done})."
        )
    return text + _expected(plan, rows, runs)


def _expected(
    plan: dict[str, Any], rows: Sequence[dict[str, Any]], runs: dict[str, list[dict[str, Any]]]
) -> str:
    """What correlation equal effects at both scales would give, in words; empty if not known yet.

    It depends on the lab's effects and on the spread of runs, not on the effects on the real model.
    """
    lab = [row["lab"] for row in rows if row["lab"] is not None]
    spread = scales.pooled([run[effects_real.STATISTIC] for run in own] for own in runs.values())
    if spread is None or len(lab) < max(len(rows), scales.FEWEST):
        return ""
    found = scales.expected(lab, spread, plan["seeds"]["method"])
    return (
        f" If the true effects there were those of the lab, {found.mean:.2f} on average, and "
        f"{found.low:.2f} to {found.high:.2f} in 90% of cases, would be expected, as runs of one "
        f"method have a standard deviation of {spread:.3f}."
    )


def table() -> list[list[str]]:
    """The methods at both scales, the header first; cells."""
    cells = [["method", "in the lab", "on SmolLM2-135M", "tokens there", "seeds there"]]
    for row in compared():
        lab = "not measured" if row["lab"] is None else f"{row['lab']:+.3f}"
        real = "not yet" if row["real"] is None else said(row["real"])
        tokens = "" if row["tokens"] is None else f"{row['tokens']:.2f}"
        cells.append([row["id"], lab, real, tokens, str(row["seeds"])])
    return cells


def markdown() -> list[str]:
    """The section on both scales of the table of effects; lines."""
    header, *rows = (f"| {' | '.join(cells)} |" for cells in table())
    return [
        "## Two scales",
        "",
        headline(),
        "",
        "Final accuracy of the method less that of GRPO in the same regime, on the lab's neutral "
        "task and on\nsums in words that SmolLM2-135M answers. In the lab each arm has a learning "
        "rate of its own, there all arms\nshare one. A method counts once all its seeds are there.",
        "",
        header,
        "|" + "---|" * (header.count("|") - 1),
        *rows,
    ]


def said(found: scales.Difference) -> str:
    """A difference, with its interval where there is one."""
    if found.low is None or found.high is None:
        return f"{found.effect:+.3f} (no interval from one run)"
    return f"{found.effect:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
