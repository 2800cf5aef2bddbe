"""Plans of measurements: their arms, tuned, and in what a plan and the code differ.

A directory holds `NAME.plan.json`, `NAME.json` with a row for each look, see `measurement`, and
`arms/KEY.json` with the figures of every arm that was run, see `stores`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.launch.lab import arms, families, files, statistics
from jaxrl.launch.lab.arms import Arm
from jaxrl.launch.lab.effect import BLOCK, Effect
from jaxrl.launch.lab.stores import VERSION, Store
from jaxrl.launch.lab.tasks import verdicts
from jaxrl.launch.lab.variants import variants

RANGE = (0.02, 0.98)
"""Accuracies outside of which a task shows no difference, if those of all arms are there."""
GUARD = 0.03
"""Loss of pass@1 that no gain in another statistic makes up for."""
_CHOSEN = ("learning_rate", "clip", "score", "pass@1")


def competitors(effect: Effect, family: str) -> dict[str, Arm]:
    """Label -> arm: `method`, `ablation: PART` and `baseline: NAME`, untuned.

    A baseline that is the method itself is left out: the method is compared with the others.
    """
    parts = arms.parts(effect.method, effect.ablation)
    if both := sorted(parts.keys() & effect.further.keys()):
        raise ValueError(f"further={both[0]!r}: a part of the ablation has this name; use another")
    without = parts | {name: change(effect.method) for name, change in effect.further.items()}
    others = families.baselines(family, regime(effect))
    return (
        {"method": effect.method}
        | {f"ablation: {part}": arm for part, arm in without.items()}
        | {f"baseline: {name}": arm for name, arm in others.items() if arm != effect.method}
    )


def regime(effect: Effect) -> Arm:
    """The arm whose regime the baselines train in.

    Where the method's rewards are the method itself, the ablation's are the regime.
    """
    rewards = effect.ablation.rewards if effect.stands_for else effect.method.rewards
    return dataclasses.replace(effect.method, rewards=rewards)


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
        figures = store.figures(effect, arm, families.DEVELOPMENT)[effect.over]
        scores = figures[effect.statistic]
        return {
            "learning_rate": rate, "clip": clip, "score": round(float(np.mean(scores)), 5),
            "pass@1": round(float(np.mean(figures.get("pass@1", 0.0))), 5), "scores": scores,
        }  # fmt: skip

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


def cost(name: str, effect: Effect) -> float:
    """Samples that tuning a method's arms takes for one seed: what a queue is ordered by."""
    total = 0.0
    for variant in variants(effect).values():
        for arm in competitors(variant, families.RECIPES[name][0]).values():
            rates = len(families.GRID["learning_rate"]) if arm.learning_rate else 1
            clips = len(families.GRID["clip"]) - 1 if arms.widths(arm.objective) else 0
            batch = arm.prompts * arm.group_size * arm.oversampling
            total += (rates + clips) * arm.steps * batch
    return total


def make(
    store: Store, name: str, effect: Effect, old: dict[str, Any] | None = None, rows: int = 1
) -> dict[str, Any]:
    """The plan of a method: tunes all arms and a pilot, on development seeds alone.

    Args:
      store: of the arms.
      name: of the method.
      effect: its experiment.
      old: an earlier plan, whose tasks stay as they are where the code would measure the same; the
        arms that one lacks are added to it as `later`, and have seeds as the others.
      rows: of the family, with those of this method: a large one takes more seeds.

    Raises:
      ValueError: all arms succeed at nothing, or at everything: the task can show no difference.
    """
    family, difference = families.RECIPES[name]
    planned = _kept(old, name, effect) if old else {}
    for task, variant in variants(effect).items():
        if task in planned:
            planned[task] = _with_later(store, variant, family, task, planned[task])
            continue
        chosen = {k: tune(store, variant, a) for k, a in competitors(variant, family).items()}
        _require_range(name, task, variant, [*chosen.values()])
        baseline = _best_baseline(variant, chosen)
        others = _others(chosen, baseline, family)
        mine = np.array(chosen["method"]["scores"])
        pilots = {label: mine - np.array(chosen[label]["scores"]) for label in others}
        needed = max(statistics.seeds_needed(p, effect.minimum, rows) for p in pilots.values())
        seeds = math.ceil(needed / BLOCK) * BLOCK
        planned[task] = {
            "task": variant.task.digest(),
            "verifier": verdicts(variant.task),
            "statistic": variant.statistic,
            "baseline": baseline,
            "seeds": seeds,
            "looks": [seeds],
            "power": {k: _power(p, effect.minimum, seeds) for k, p in pilots.items()},
            "arms": {k: {name: c[name] for name in _CHOSEN} for k, c in chosen.items()},
        }
        planned[task]["described"] = _described(effect, family, task, planned[task])
    return {
        "name": name,
        "family": family,
        "difference": difference,
        **_stated(effect),
        "grid": {k: list(v) for k, v in families.GRID.items()},
        "development": list(families.DEVELOPMENT),
        "tasks": planned,
    }


def _with_later(
    store: Store, effect: Effect, family: str, task: str, planned: dict[str, Any]
) -> dict[str, Any]:
    """A task of a plan with the arms that it lacks, tuned as the others were."""
    lacking = unplanned(effect, family, planned)
    if not lacking:
        return planned
    known = competitors(effect, family)
    own = planned["arms"]["method"]
    method = arms.tuned(known["method"], own["learning_rate"], own["clip"])
    figures = store.figures(effect, method, families.DEVELOPMENT)[effect.over]
    later = dict(planned.get("later", {}))
    for label in lacking:
        chosen = tune(store, effect, known[label])
        differences = np.array(figures[effect.statistic]) - np.array(chosen["scores"])
        tuned = arms.tuned(known[label], chosen["learning_rate"], chosen["clip"])
        later[label] = {
            **{name: chosen[name] for name in _CHOSEN},
            "power": _power(differences, effect.minimum, planned["seeds"]),
            "described": files.digest(arms.describe(tuned)),
        }
    return planned | {"later": later}


def unplanned(effect: Effect, family: str, planned: Mapping[str, Any]) -> list[str]:
    """Labels of the ablations that a task of a plan has not: parts, and `Effect.further`."""
    known = planned["arms"].keys() | planned.get("later", {}).keys()
    return [k for k in competitors(effect, family) if k.startswith("ablation: ") and k not in known]


def _power(differences: np.ndarray, minimum: float, seeds: int) -> float:
    deviation = statistics.deviation_expected(differences, minimum)
    return round(statistics.power(deviation, minimum, seeds), 3)


def _best_baseline(effect: Effect, chosen: Mapping[str, dict[str, Any]]) -> str:
    """The label of the best baseline.

    Where the statistic is no accuracy, only baselines whose pass@1 is within `GUARD` of the best
    one's are chosen from, as in `tune`.
    """
    sign = 1 if effect.better == "higher" else -1
    rivals = [label for label in chosen if label.startswith("baseline: ")]
    if guarded(effect.statistic):
        least = max(chosen[label]["pass@1"] for label in rivals) - GUARD
        rivals = [label for label in rivals if chosen[label]["pass@1"] >= least]
    return max(rivals, key=lambda label: sign * chosen[label]["score"])


def _stated(effect: Effect) -> dict[str, Any]:
    fields = ("claim", "over", "better", "minimum", "warm_steps", "stands_for")
    return {"version": VERSION} | {name: getattr(effect, name) for name in fields}


def _described(effect: Effect, family: str, task: str, planned: dict[str, Any]) -> dict[str, str]:
    """Digest of each tuned arm of a plan, as the code has it now."""
    made = arms_of(effect, family, task, planned)
    return {label: files.digest(arms.describe(a)) for label, a in made.items()}


def arms_of(effect: Effect, family: str, task: str, planned: dict[str, Any]) -> dict[str, Arm]:
    """The tuned arms of a task of a plan, as the code has them now, by label."""
    known = competitors(variants(effect)[task], family)
    return {
        label: arms.tuned(known[label], chosen["learning_rate"], chosen["clip"])
        for label, chosen in (planned["arms"] | planned.get("later", {})).items()
        if label in known
    }


def differences(plan: dict[str, Any], name: str, effect: Effect) -> list[str]:
    """In what a plan differs from what the code would measure; one line each."""
    lines, found = _restated(plan, name, effect), variants(effect)
    if sorted(found) != sorted(plan.get("tasks", {})):
        return [*lines, f"tasks: the plan has {sorted(plan.get('tasks', {}))}, not {sorted(found)}"]
    return lines + [line for task in plan["tasks"] for line in _replaced(plan, task, effect)]


def of_row(plan: dict[str, Any], task: str, label: str) -> str:
    """Digest of a plan as far as a row goes: other tasks and arms may be added later."""
    planned = {name: value for name, value in plan["tasks"][task].items() if name != "later"}
    if label in plan["tasks"][task].get("later", {}):
        planned["later"] = {label: plan["tasks"][task]["later"][label]}
    return files.digest(plan | {"tasks": {task: planned}})


def _kept(plan: dict[str, Any], name: str, effect: Effect) -> dict[str, Any]:
    """The tasks of a plan that the code would measure as planned."""
    if _restated(plan, name, effect):
        return {}
    kept = dict[str, Any]()
    for task in variants(effect).keys() & plan["tasks"].keys():
        planned, other = plan["tasks"][task], _replaced_arms(plan, task, effect)
        later = {k: v for k, v in planned.get("later", {}).items() if k not in other}
        if not _replaced_task(plan, task, effect) and not other & planned["described"].keys():
            rest = {name: value for name, value in planned.items() if name != "later"}
            kept[task] = rest | ({"later": later} if later else {})
    return {task: kept[task] for task in plan["tasks"] if task in kept}


def _restated(plan: dict[str, Any], name: str, effect: Effect) -> list[str]:
    """In what all tasks of a plan differ from what the code would measure; one line each."""
    family, difference = families.RECIPES[name]
    now = {"name": name, "family": family, "difference": difference, **_stated(effect)}
    now |= {"grid": {k: list(v) for k, v in families.GRID.items()}}
    now |= {"development": list(families.DEVELOPMENT)}
    return [
        f"{k}: the plan has {plan.get(k)!r}, the code {v!r}"
        for k, v in now.items()
        if plan.get(k) != v
    ]


def _replaced(plan: dict[str, Any], task: str, effect: Effect) -> list[str]:
    """In what a task of a plan and its arms differ from what the code would measure."""
    changed = sorted(_replaced_arms(plan, task, effect))
    return _replaced_task(plan, task, effect) + [
        f"{task}: the arm {label!r} is another" for label in changed
    ]


def _replaced_task(plan: dict[str, Any], task: str, effect: Effect) -> list[str]:
    """In what a task of a plan itself differs; one line each."""
    planned, lines = plan["tasks"][task], list[str]()
    if planned["task"] != variants(effect)[task].task.digest():
        lines.append(f"{task}: the task's problems are others")
    judged = planned.get("verifier")  # plans from before 2026-11-25 have none
    if judged is not None and judged != verdicts(variants(effect)[task].task):
        lines.append(f"{task}: the task's verifier judges otherwise")
    return lines


def _replaced_arms(plan: dict[str, Any], task: str, effect: Effect) -> set[str]:
    """Labels of the arms of a task of a plan that the code has otherwise, or not at all."""
    planned = plan["tasks"][task]
    described = _described(effect, plan["family"], task, planned)
    stated = planned["described"] | {
        label: chosen["described"] for label, chosen in planned.get("later", {}).items()
    }
    labels = stated.keys() | described.keys()
    return {label for label in labels if stated.get(label) != described.get(label)}


def _require_range(name: str, task: str, effect: Effect, chosen: Sequence[dict[str, Any]]) -> None:
    """Refuse a task on which no arm succeeds, or where the statistic is an accuracy, every arm.

    An experiment with a statistic of its own that is no accuracy is not checked.
    """
    low, high = RANGE
    read_beside = guarded(effect.statistic)
    if read_beside and effect.measure is not None:
        return
    found = [c["pass@1" if read_beside else "score"] for c in chosen]
    if max(found) < low or (min(found) > high and not read_beside):
        raise ValueError(
            f"{name}: on the {task} task, the accuracies of the tuned arms are {min(found):.3f} to "
            f"{max(found):.3f}, outside {low} to {high}; give the task other difficulties or the "
            "warm start more steps"
        )


def guarded(statistic: str) -> bool:
    """Whether a statistic is no accuracy, and so is read beside one."""
    return not statistic.startswith(("pass@1", "score", "pass@8", "derived"))


def compared_with(plan: dict[str, Any], effect: Effect, task: str) -> list[str]:
    """The arms of a plan that the method has rows against on one of its tasks."""
    planned = plan["tasks"][task]
    made = arms_of(effect, plan["family"], task, planned)
    return _others(made, planned["baseline"], plan["family"])


def _others(known: Collection[str], baseline: str, family: str) -> list[str]:
    """The arms that the method is compared with: ablations, the best baseline, and those that the
    family is always compared with."""
    always = [f"baseline: {name}" for name in families.ALWAYS.get(family, ())]
    ablations = [label for label in known if label.startswith("ablation: ")]
    return [*ablations, baseline, *(k for k in always if k in known and k != baseline)]
