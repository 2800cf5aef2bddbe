"""How arms are tuned on the development seeds, and what a plan makes of their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.lab import arms, families, statistics
from experiments.lab.arms import Arm
from experiments.lab.effect import BLOCK, Effect
from experiments.lab.stores import Store

RANGE = (0.02, 0.98)
"""Accuracies outside of which a task shows no difference, if both arms are there."""
GUARD = 0.03
"""Loss of pass@1 that no gain in another statistic makes up for."""


def tune(store: Store, effect: Effect, given: Arm) -> dict[str, Any]:
    """The best of the grid on the development seeds: first the rate, then the clip's width.

    Where the statistic is no accuracy, such as a length, only settings whose pass@1 is within
    `GUARD` of the best one of the arm are chosen from. A clip that never binds is not tuned.

    Returns:
      `learning_rate`, `clip`, `score` and the `scores` [seed] of the best.
    """
    sign = 1 if effect.better == "higher" else -1

    def tried(rate: float, clip: float) -> dict[str, Any]:
        arm = arms.tuned(given, rate, clip)
        got = scored(effect, store.figures(effect, arm, families.DEVELOPMENT))
        return {"learning_rate": rate, "clip": clip} | got

    def best(tries: list[dict[str, Any]]) -> dict[str, Any]:
        if guarded(effect.statistic):
            least = max(t["pass@1"] for t in tries) - GUARD
            tries = [t for t in tries if t["pass@1"] >= least]
        return max(tries, key=lambda t: sign * t["score"])

    rates = families.GRID["learning_rate"] if given.learning_rate else (0.0,)
    first = best([tried(rate, 1.0) for rate in rates])
    if not arms.widths(given.objective) or arms.on_policy(given):
        return first
    others = [clip for clip in families.GRID["clip"] if clip != 1.0]
    return best([first, *(tried(first["learning_rate"], clip) for clip in others)])


def scored(effect: Effect, figures: dict[str, Any]) -> dict[str, Any]:
    """What an arm is chosen by, of its figures on the development seeds."""
    own = figures[effect.over]
    scores = own[effect.statistic]
    means = {"score": scores, "pass@1": own.get("pass@1", 0.0)}
    return {k: round(float(np.mean(v)), 5) for k, v in means.items()} | {"scores": scores}


def best_baseline(effect: Effect, chosen: Mapping[str, dict[str, Any]]) -> str:
    """The label of the best baseline.

    Where the statistic is no accuracy, only baselines whose pass@1 is within `GUARD` of the best
    one's are chosen from, as in `tune`.
    """
    sign = 1 if effect.better == "higher" else -1
    rivals = [label for label in chosen if label.startswith("baseline: ")]
    if guarded(effect.statistic):
        least = max((chosen[label]["pass@1"] for label in rivals), default=0.0) - GUARD
        rivals = [label for label in rivals if chosen[label]["pass@1"] >= least]
    return max(rivals, key=lambda label: sign * chosen[label]["score"], default="")


def pilots(chosen: Mapping[str, dict], others: Sequence[str]) -> list[np.ndarray]:
    """Differences of the method and others on the development seeds, from their `scores`."""
    mine = np.array(chosen["method"]["scores"])
    return [mine - np.array(chosen[label]["scores"]) for label in others]


def seeds(differences: Sequence[np.ndarray], minimum: float, rows: int) -> int:
    """The seeds that all pilots need, in whole blocks."""
    needed = max(statistics.seeds_needed(pilot, minimum, rows) for pilot in differences)
    return math.ceil(needed / BLOCK) * BLOCK


def power(differences: np.ndarray, minimum: float, size: int) -> float:
    """The power that a plan states for a number of seeds, by a pilot."""
    deviation = statistics.deviation_expected(differences, minimum)
    return round(statistics.power(deviation, minimum, size), 3)


def require_range(
    name: str, task: str, effect: Effect, chosen: Mapping[str, dict[str, Any]]
) -> None:
    """Refuse a task on which neither the method nor an ablation succeeds.

    Where the statistic is an accuracy, also one on which all of these succeed at everything. An
    experiment with a statistic of its own that is no accuracy is not checked.
    """
    low, high = RANGE
    read_beside = guarded(effect.statistic)
    if read_beside and effect.measure is not None:
        return
    figure = "pass@1" if read_beside else "score"
    found = [c[figure] for label, c in chosen.items() if not label.startswith("baseline: ")]
    if max(found) < low or (min(found) > high and not read_beside):
        raise ValueError(
            f"{name}: on the {task} task, the accuracies of the tuned method and its ablations are "
            f"{min(found):.3f} to {max(found):.3f}, outside {low} to {high}; give the task other "
            "difficulties or the warm start more steps"
        )


def guarded(statistic: str) -> bool:
    """Whether a statistic is no accuracy, and so is read beside one."""
    return not statistic.startswith(("pass@1", "score", "pass@8", "derived"))
