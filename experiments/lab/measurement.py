"""What is measured by a plan: a row for each look at each pair of arms."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from experiments.lab import plans, statistics, tuning, views
from experiments.lab.effect import Effect
from experiments.lab.statistics import Comparison
from experiments.lab.stores import Store
from experiments.lab.variants import variants


def measure(
    store: Store,
    plan: dict[str, Any],
    effect: Effect,
    commit: str,
    pairs: Collection[tuple[str, str]] = (),
) -> Iterator[dict]:
    """The rows of a plan, one for each look at each pair of arms.

    Args:
      store: of the arms.
      plan: as committed.
      effect: the experiment of its method.
      commit: that holds the plan.
      pairs: (task, label of the other arm) of the rows to measure; empty: all.
    """
    for task, planned in plan["tasks"].items():
        others, looks = plans.compared_with(plan, effect, task), planned["looks"]
        open_ = [label for label in others if not pairs or (task, label) in pairs]
        if not open_:
            continue
        variant = variants(effect)[task]
        made = plans.arms_of(effect, plan["family"], task, planned)
        collected = {label: [] for label in made}
        for number, (size, level) in enumerate(
            zip(looks, statistics.levels(looks), strict=True), start=1
        ):
            seeds = range(looks[number - 2] if number > 1 else 0, size)
            for label in ["method", *open_]:
                collected[label].append(store.figures(variant, made[label], seeds))
            for label in list(open_):
                pair = collected["method"], collected[label]
                row = compare(variant, task, label, *pair, level, plan["family"])
                digested = plans.of_row(plan, task, label)
                yield row | {"look": number, "plan": commit, "plan_digest": digested}
                if row["alone"] != "undecided":
                    open_.remove(label)
            if not open_:
                break


def compare(
    effect: Effect, task: str, label: str, mine: list[dict], other: list[dict], level: float,
    family: str,
) -> dict[str, Any]:  # fmt: skip
    """What a look at two arms gives: a row without its plan.

    Args:
      effect: the experiment on the task.
      task: its name.
      label: of the other arm.
      mine, other: figures of the method's and of the other arm's parts, on the same seeds.
      level: of the look.
      family: of the method.
    """

    def joined(parts: list[dict], name: str) -> np.ndarray:
        return np.concatenate([np.array(part[effect.over][name]) for part in parts])

    def compared(name: str, minimum: float) -> Comparison:
        return statistics.paired(
            joined(mine, name) - joined(other, name), minimum=minimum, level=level
        )

    got = compared(effect.statistic, effect.minimum)
    guard = None
    if tuning.guarded(effect.statistic) and "pass@1" in mine[0][effect.over]:
        guard = compared("pass@1", tuning.GUARD)
    alone = statistics.status(got, got.p, better=effect.better, guard=guard, minimum=tuning.GUARD)
    return {
        "task": task,
        "against": label.partition(": ")[0],
        "other": label.partition(": ")[2],
        "statistic": effect.statistic,
        "better": effect.better,
        "minimum": effect.minimum,
        "comparison": dataclasses.asdict(got),
        "guard": guard and dataclasses.asdict(guard),
        "alone": alone,
        "means": [float(joined(x, effect.statistic).mean()) for x in (mine, other)],
        "at_tokens": views.at_equal("tokens", effect, mine, other, level),
        "tokens": round(float(_final(mine, "tokens") / _final(other, "tokens")), 4),
        "updates": round(float(_final(mine, "updates") / _final(other, "updates")), 4),
        "family": family,
        "arms": [[part["key"] for part in x] for x in (mine, other)],
    }


def _final(parts: list[dict], name: str) -> float:
    return float(np.mean([np.mean(part["final"][name]) for part in parts]))
