"""The fair baseline of a method: the best tuned one that takes no more samples than it.

A baseline that samples more prompts than it trains on, as DAPO does, takes more samples at equal
steps. It has a row of its own, and no verdict reads it. The best of the others is chosen by the
same rule, on the same development seeds. Where its figures on the measured seeds are kept, its row
is computed from them; where they are not, the development seeds say what can be said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.lab import families, measurement, plans, statistics, tuning
from experiments.lab.arms import Arm
from experiments.lab.effect import Effect
from experiments.lab.stores import Store
from experiments.lab.variants import variants


@dataclasses.dataclass(frozen=True)
class Fair:
    """The fair baseline on one task of a method's plan."""

    label: str
    """`baseline: NAME`."""
    larger: frozenset[str]
    """Labels of the baselines with larger budgets."""
    row: dict[str, Any] | None = None
    """Its comparison, where it is not the plan's baseline and its figures are kept."""
    development: statistics.Comparison | None = None
    """On the development seeds that both arms were tuned on, where it is not measured."""


def of_task(store: Store, plan: dict[str, Any], effect: Effect, task: str) -> Fair:
    """The fair baseline of a method on a task of its plan.

    Args:
      store: that keeps the figures.
      plan: of the method.
      effect: its experiment.
      task: of the plan.
    """
    label, larger, arms = _arms(plan, effect, task)
    planned, variant = plan["tasks"][task], variants(effect)[task]
    if label == planned["baseline"]:
        return Fair(label, larger)
    looks = _looks(planned)
    kept = [[store.kept(variant, arm, s) for s in looks] for arm in arms]
    mine, other = ([part for part in arm if part] for arm in kept)
    if len(mine) == len(other) == len(looks):
        level = statistics.LEVEL
        row = measurement.compare(variant, task, label, mine, other, level, plan["family"])
        return Fair(label, larger, row=row | {"look": len(looks)})
    return Fair(label, larger, development=_on_development(store, variant, *arms))


def measure(store: Store, plan: dict[str, Any], effect: Effect, task: str) -> str:
    """Run the fair baseline of a task on the measured seeds, if its figures are not kept.

    The plan says which baseline it is, its settings and the seeds. Returns its label; empty if
    nothing had to be run.
    """
    label, _, (_, baseline) = _arms(plan, effect, task)
    planned, variant = plan["tasks"][task], variants(effect)[task]
    left = [seeds for seeds in _looks(planned) if not store.kept(variant, baseline, seeds)]
    for seeds in left:
        store.figures(variant, baseline, seeds)
    return label if left else ""


def _arms(
    plan: dict[str, Any], effect: Effect, task: str
) -> tuple[str, frozenset[str], tuple[Arm, Arm]]:
    """The fair baseline's label, those of larger budgets, and the method and that baseline."""
    planned, variant = plan["tasks"][task], variants(effect)[task]
    tuned = plans.arms_of(effect, plan["family"], task, planned)
    larger = frozenset(label for label in tuned if _larger(label, tuned))
    label = planned["baseline"]
    if label in larger:
        rivals = {name: arm for name, arm in planned["arms"].items() if name not in larger}
        label = tuning.best_baseline(variant, rivals)
    return label, larger, (tuned["method"], tuned[label])


def _looks(planned: dict[str, Any]) -> list[range]:
    """The seeds of each look of a task's plan."""
    return [range(a, b) for a, b in zip([0, *planned["looks"]], planned["looks"], strict=False)]


def _larger(label: str, tuned: Mapping[str, Arm]) -> bool:
    """Whether an arm is a baseline that takes more samples a step than the method."""
    return label.startswith("baseline: ") and samples(tuned[label]) > samples(tuned["method"])


def samples(arm: Arm) -> float:
    """The most samples of a step of an arm."""
    stages = [arm.at(start) for start, _ in arm.stages or ((0, {}),)]
    return max(stage.prompts * stage.group_size * stage.oversampling for stage in stages)


def _on_development(
    store: Store, effect: Effect, method: Arm, baseline: Arm
) -> statistics.Comparison | None:
    kept = [store.kept(effect, arm, families.DEVELOPMENT) for arm in (method, baseline)]
    mine, other = (arm and np.array(arm[effect.over][effect.statistic]) for arm in kept)
    if mine is None or other is None:
        return None
    return statistics.paired(mine - other, minimum=effect.minimum)
