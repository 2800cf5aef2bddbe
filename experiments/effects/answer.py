"""What the measurements say: ten sentences with numbers, each with its caveat."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from experiments.effects import verdicts
from experiments.effects.league import Standing

SMALL = 0.03
"""A difference of pass rates that is below the minimum effect."""
STALE = "off-policy"
CURRICULA = "data selection"


def sentences(rows: Sequence[dict[str, Any]], standings: Sequence[Standing],
              correlation: str, fidelities: dict[str, str]) -> list[str]:  # fmt: skip
    """The answer.

    Args:
      rows: of the table, of all methods.
      standings: the league.
      correlation: of the lab and the real model, in words that end a sentence.
      fidelities: id of a method -> its recipe's fidelity.
    """
    methods = verdicts.by_method(rows)
    league = {(s.family, s.algorithm): s for s in standings}
    return [
        _replicated(methods, fidelities),
        _against_fair(rows),
        _elsewhere(methods),
        _fresh(league),
        _dynamic(league, rows),
        _solutions(league),
        _others(league),
        _stale(league, methods),
        _curricula(methods),
        f"On a language model nothing is shown yet: {correlation} (caveat: the effects of these "
        "methods in the lab differ by less than runs of one method there).",
    ]


def _replicated(methods: dict[str, list[dict[str, Any]]], fidelities: dict[str, str]) -> str:
    counts = Counter(
        verdicts.verdict(method_rows, fidelities[name]) for name, method_rows in methods.items()
    )
    return (
        f"Of {len(methods)} methods, {counts[verdicts.FAIR]} beat both their ablation and a fair "
        f"tuned baseline in their own regime, and {counts[verdicts.HANDICAPPED]} beat both where "
        "that baseline lacks something that the method has (caveat: a regime is made to suit its "
        f"method, and {counts[verdicts.UNTOLD]} claims cannot be told)."
    )


def _against_fair(rows: Sequence[dict[str, Any]]) -> str:
    in_regime = [r for r in rows if r["best"] and r["task"] == "regime"]
    fair = Counter(r["status"] for r in in_regime if r["measured"] and not r["handicap"])
    waiting = sum(not r["measured"] for r in in_regime)
    return (
        "Against a fair baseline without a handicap, the number of methods that are better in "
        f"their own regime is {fair['effect']} of {fair.total()}; {fair['equivalent']} are "
        f"equivalent, {fair['contrary']} worse and {fair['undecided']} undecided (caveat: of "
        f"{waiting} more, the fair baseline was run on six development seeds alone)."
    )


def _elsewhere(methods: dict[str, list[dict[str, Any]]]) -> str:
    again = Counter[str]()
    for method_rows in methods.values():
        status = {row["task"]: row["status"] for row in verdicts.whole_rows(method_rows)}
        if status.get("regime") == "effect" and "neutral" in status:
            again[status["neutral"]] += 1
    neutral = [
        r for method_rows in methods.values() for r in method_rows
        if r["task"] == "neutral" and r["best"] and r["measured"] and not r["handicap"]
        and r["statistic"] == "pass@1"
    ]  # fmt: skip
    return (
        f"Of {again.total()} effects against the ablation that were measured on the neutral task "
        f"too, {again['effect']} are effects there as well, {again['equivalent']} are shown to be "
        f"small and {again['contrary']} have the opposite sign; the median method is "
        f"{_signed(statistics.median(r['effect'] for r in neutral))} from the fair baseline there, "
        f"of {len(neutral)} (caveat: rows off the regime are not corrected)."
    )


def _fresh(league: dict[tuple[str, str], Standing]) -> str:
    parts = [
        f"{name} is within {SMALL} of GRPO in {standing.count(-SMALL, SMALL)} of "
        f"{len(standing.differences)} tasks (median {_signed(standing.median)})"
        for name in ("Dr. GRPO", "CISPO")
        for standing in [league["objectives", name]]
    ]
    return (
        f"On fresh data the objective hardly matters: {' and '.join(parts)} (caveat: "
        "development seeds, which each was tuned on)."
    )


def _dynamic(league: dict[tuple[str, str], Standing], rows: Sequence[dict[str, Any]]) -> str:
    both = [league["objectives", "DAPO"], league[CURRICULA, "dynamic sampling"]]
    tasks = [difference for standing in both for difference in standing.differences]
    larger = [1 / row["tokens"] for row in rows if row["measured"] and row["larger"]]
    return (
        f"Dynamic sampling, alone or in DAPO, is better per step in {sum(d > 0 for d in tasks)} "
        f"of {len(tasks)} tasks, by {_signed(statistics.median(tasks))} in the median (caveat: it "
        f"took {statistics.median(larger):.1f} times the tokens of the methods beside it, so this "
        "is no fair comparison)."
    )


def _solutions(league: dict[tuple[str, str], Standing]) -> str:
    standings = {
        name: league["gold solutions", name] for name in ("LUFFY", "SFT + GRPO", "SFT then RL")
    }
    parts = [
        f"{name} in {sum(d < 0 for d in standing.differences)} of {len(standing.differences)}"
        for name, standing in standings.items()
    ]
    every = [d for standing in standings.values() for d in standing.differences]
    return (
        f"Where solutions are given, SFT alone is better than {', '.join(parts)} tasks (caveat: "
        f"development seeds, and single tasks range from {_signed(min(every))} to "
        f"{_signed(max(every))})."
    )


def _others(league: dict[tuple[str, str], Standing]) -> str:
    names = (("critics", "PPO"), ("preferences", "online DPO"),
             ("preferences", "rejection sampling"))  # fmt: skip
    parts = [
        f"{name} in {sum(d <= 0 for d in standing.differences)} of {len(standing.differences)} "
        f"(mean {_signed(standing.mean)})"
        for family, name in names
        for standing in [league[family, name]]
    ]
    return (
        f"GRPO is as good as or better than {', '.join(parts)} tasks (caveat: the rate of PPO's "
        "critic was fixed at 1e-3 and not tuned)."
    )


def _stale(
    league: dict[tuple[str, str], Standing], methods: dict[str, list[dict[str, Any]]]
) -> str:
    primary = [
        row for method_rows in methods.values() for row in method_rows
        if row["role"] == "primary" and row["family"] == STALE and row["status"] == "effect"
    ]  # fmt: skip
    gains = sorted(row["effect"] for row in primary)
    clip, decoupled = (league[STALE, name] for name in ("REC clip", "decoupled PPO"))
    return (
        f"On stale data, clipping or weighting matters, and the choice between them matters less: "
        f"{len(gains)} methods gain {_signed(gains[0])} to {_signed(gains[-1])} over their "
        f"ablations, while REC's clip and decoupled PPO are {_signed(clip.median)} and "
        f"{_signed(decoupled.median)} from truncated importance sampling in the median "
        f"of {len(clip.differences)} tasks (caveat: "
        f"single tasks range from {_signed(min(clip.differences + decoupled.differences))} to "
        f"{_signed(max(clip.differences + decoupled.differences))})."
    )


def _curricula(methods: dict[str, list[dict[str, Any]]]) -> str:
    ways = [
        row for rows in methods.values() for row in rows
        if row["family"] == CURRICULA and row["task"] == "regime" and row["best"]
    ]  # fmt: skip
    intervals = [
        row["interval"] if row["measured"] else row["development"]["interval"] for row in ways
    ]
    better, worse = (
        sum(i[0] > 0 for i in intervals), sum(i[1] < 0 for i in intervals),
    )  # fmt: skip
    beside = [
        row for rows in methods.values() for row in rows
        if row["family"] == CURRICULA and row["task"] == "regime" and row["larger"]
    ]  # fmt: skip
    return (
        f"Of {len(ways)} ways to choose prompts, intervals put {better} above uniform prompts and "
        f"{worse} below in their own regime, and {sum(r['effect'] > 0 for r in beside)} of "
        f"{len(beside)} score above dynamic sampling (caveat: against uniform prompts "
        f"{sum(not row['measured'] for row in ways)} were run on six development seeds alone, and "
        "dynamic sampling takes more samples)."
    )


def _signed(value: float) -> str:
    return f"{value:+.3f}"
