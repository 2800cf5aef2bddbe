"""What the rows of a method say of its claim, in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FAIR = "replicates against a fair tuned baseline"
HANDICAPPED = "replicates where the baseline has a handicap"
ABLATION_ONLY = "beats its ablation alone"
BASELINE_OPEN = "beats its ablation, undecided against the baseline"
BASELINE_UNMEASURED = "beats its ablation, fair baseline not measured"
CONTRARY, NO_EFFECT = "contrary", "does not replicate"
WORSE_UNVERIFIED = "worse than its ablation, formula not verified"
SAME_UNVERIFIED = "level with its ablation, formula not verified"
UNTOLD = "cannot be told"
OWN_FORMULA = "no verdict: the formula is our own"
UNMEASURED = "not measured"
MEANINGS = {
    FAIR: "it beats its ablation and the best tuned baseline of equal samples",
    HANDICAPPED: "it beats both, and that baseline lacks something that the method has",
    ABLATION_ONLY: "it beats its ablation; that baseline is as good or better",
    BASELINE_OPEN: "it beats its ablation; the data cannot tell it from that baseline",
    BASELINE_UNMEASURED: "it beats its ablation; that baseline was run on development seeds alone",
    CONTRARY: "it is worse than its ablation, by a formula that was compared with a source",
    NO_EFFECT: "the difference to its ablation is below the minimum effect, by such a formula",
    WORSE_UNVERIFIED: "it is worse, which may be due to our formula",
    SAME_UNVERIFIED: "there is no difference, which may be due to our formula",
    UNTOLD: "the data allow an effect and none, or accuracies or budgets cannot be compared",
    OWN_FORMULA: "what was measured is not the paper's formula",
    UNMEASURED: "there is no row",
}
"""Verdict -> what it means; the order of the page."""


def verdict(rows: Sequence[dict[str, Any]], fidelity: str) -> str:
    """What the rows of one method say of its claim.

    The primary row decides, and where it is an effect, the one against the fair baseline. Rows
    against other baselines, of other tasks and of further arms do not count.

    Args:
      rows: of the method, see `table.rows`.
      fidelity: of its recipe, as the docstring has it.
    """
    primary = next((row for row in rows if row["role"] == "primary"), None)
    if primary is None:
        return UNMEASURED
    if fidelity == "own formula":
        return OWN_FORMULA
    if primary["status"] != "effect":
        verified = fidelity.startswith("verified")
        return {
            "contrary": CONTRARY if verified else WORSE_UNVERIFIED,
            "equivalent": NO_EFFECT if verified else SAME_UNVERIFIED,
            "undecided": UNTOLD,
        }[primary["status"]]
    baseline = fair_row(rows)
    if baseline is None or not baseline["measured"]:
        return BASELINE_UNMEASURED
    if baseline["status"] == "effect":
        return HANDICAPPED if baseline["handicap"] else FAIR
    return BASELINE_OPEN if baseline["status"] == "undecided" else ABLATION_ONLY


def fair_row(rows: Sequence[dict[str, Any]], task: str = "regime") -> dict[str, Any] | None:
    """The row of a method against the fair baseline on a task, measured or not."""
    return next((row for row in rows if row["best"] and row["task"] == task), None)


def whole_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured row of a whole method against its ablation on each task."""
    own = [
        row for row in rows
        if row["measured"] and row["against"] == "ablation" and not row["further"]
    ]  # fmt: skip
    bundles = {row["task"] for row in own if row["other"] == "all"}
    return [row for row in own if row["other"] == "all" or row["task"] not in bundles]


def by_method(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each method, by its id."""
    out = dict[str, list[dict[str, Any]]]()
    for row in rows:
        out.setdefault(row["id"], []).append(row)
    return out
