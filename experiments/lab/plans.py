"""Plans of measurements: their arms, tuned, and in what a plan and the code differ.

A directory holds `NAME.plan.json`, `NAME.json` with a row for each look, see `measurement`, and
`arms/KEY.json` with the figures of every arm that was run, see `stores`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from experiments.lab import arms, families, files, statistics, stores, tuning
from experiments.lab.arms import Arm
from experiments.lab.effect import BLOCK, Effect
from experiments.lab.stores import VERSION, Store
from experiments.lab.tasks import verdicts
from experiments.lab.variants import variants

_CHOSEN = ("learning_rate", "clip", "score", "pass@1")
_FIELDS = ("task", "statistic", "baseline", "seeds", "looks", "power", "arms", "described")
"""Of a task of every plan. Older plans have nothing else of `stated_of`, others have all of it."""


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
      ValueError: method and ablations succeed at nothing, or at everything: the task can show no
        difference.
    """
    family, difference = families.RECIPES[name]
    planned = _kept(store, old, name, effect) if old else {}
    for task, variant in variants(effect).items():
        if task in planned:
            planned[task] = _with_later(store, variant, family, task, planned[task])
            continue
        made = competitors(variant, family)
        chosen = {label: tuning.tune(store, variant, arm) for label, arm in made.items()}
        tuning.require_range(name, task, variant, chosen)
        baseline = tuning.best_baseline(variant, chosen)
        others = _others(chosen, baseline, family)
        pilots = tuning.pilots(chosen, others)
        seeds = tuning.seeds(pilots, effect.minimum, rows)
        planned[task] = {
            "task": variant.task.digest(),
            "verifier": verdicts(variant.task),
            **stated_of(variant),
            "baseline": baseline,
            "seeds": seeds,
            "looks": [seeds],
            "power": {
                label: tuning.power(pilot, effect.minimum, seeds)
                for label, pilot in zip(others, pilots, strict=True)
            },
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


def stated_of(variant: Effect) -> dict[str, Any]:
    """What the plan of a task says of how it is measured, beside problems and arms."""
    names = ("statistic", "over", "better", "minimum", "warm_steps")
    return {k: getattr(variant, k) for k in names} | {"measure": stores.measured_by(variant)}


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
        chosen = tuning.tune(store, effect, known[label])
        differences = np.array(figures[effect.statistic]) - np.array(chosen["scores"])
        tuned = arms.tuned(known[label], chosen["learning_rate"], chosen["clip"])
        later[label] = {
            **{name: chosen[name] for name in _CHOSEN},
            "power": tuning.power(differences, effect.minimum, planned["seeds"]),
            "described": files.digest(arms.describe(tuned)),
        }
    return planned | {"later": later}


def unplanned(effect: Effect, family: str, planned: Mapping[str, Any]) -> list[str]:
    """Labels of the ablations that a task of a plan has not: parts, and `Effect.further`."""
    known = planned["arms"].keys() | planned.get("later", {}).keys()
    return [k for k in competitors(effect, family) if k.startswith("ablation: ") and k not in known]


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


def differences(
    plan: dict[str, Any], name: str, effect: Effect, store: Store | None = None
) -> list[str]:
    """In what a plan differs from what the code would measure; one line each.

    Args:
      plan: as it is in its file.
      name: of the method.
      effect: its experiment.
      store: that keeps the figures of the development seeds. With it, scores and seeds of the plan
        must be what these figures give. This also tells how an older plan was tuned, which states
        the statistic alone.
    """
    lines, found = _restated(plan, name, effect), variants(effect)
    if sorted(found) != sorted(plan.get("tasks", {})):
        return [*lines, f"tasks: the plan has {sorted(plan.get('tasks', {}))}, not {sorted(found)}"]
    for task in plan["tasks"]:
        own = _replaced(plan, task, effect)
        lines += own or (_not_as_tuned(store, plan, task, effect) if store else [])
    return lines


def of_row(plan: dict[str, Any], task: str, label: str) -> str:
    """Digest of a plan as far as a row goes: other tasks and arms may be added later."""
    planned = {name: value for name, value in plan["tasks"][task].items() if name != "later"}
    if label in plan["tasks"][task].get("later", {}):
        planned["later"] = {label: plan["tasks"][task]["later"][label]}
    return files.digest(plan | {"tasks": {task: planned}})


def _kept(store: Store, plan: dict[str, Any], name: str, effect: Effect) -> dict[str, Any]:
    """The tasks of a plan that the code would measure as planned."""
    if _restated(plan, name, effect):
        return {}
    kept = dict[str, Any]()
    for task in variants(effect).keys() & plan["tasks"].keys():
        planned = plan["tasks"][task]
        rest = {name: value for name, value in planned.items() if name != "later"}
        alone = plan | {"tasks": {task: rest}}
        if _replaced(alone, task, effect) or _not_as_tuned(store, alone, task, effect):
            continue
        other = _replaced_arms(plan, task, effect)
        later = {k: v for k, v in planned.get("later", {}).items() if k not in other}
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
    if lacking := [name for name in _FIELDS if name not in plan["tasks"][task]]:
        return [f"{task}: the plan has no {name}" for name in lacking]
    changed = sorted(_replaced_arms(plan, task, effect))
    return _replaced_task(plan, task, effect) + [
        f"{task}: the arm {label!r} is another" for label in changed
    ]


def _replaced_task(plan: dict[str, Any], task: str, effect: Effect) -> list[str]:
    """In what a task of a plan itself differs; one line each."""
    planned, variant, lines = plan["tasks"][task], variants(effect)[task], list[str]()
    if planned["task"] != variant.task.digest():
        lines.append(f"{task}: the task's problems are others")
    judged = planned.get("verifier")  # plans from before 2026-11-25 have none
    if judged is not None and judged != verdicts(variant.task):
        lines.append(f"{task}: the task's verifier judges otherwise")
    now = stated_of(variant)
    if older := _is_older(planned):
        now = {"statistic": variant.statistic}
    lines += [
        f"{task}: {k}: the plan has {planned.get(k)!r}, the code {v!r}"
        for k, v in (now | {"looks": [planned["seeds"]]}).items()
        if planned.get(k) != v
    ]
    if not older:
        absent = sorted(competitors(variant, plan["family"]).keys() - planned["arms"].keys())
        baselines = [label for label in absent if label.startswith("baseline: ")]
        lines += [f"{task}: the plan has no arm {label!r}" for label in baselines]
    best = tuning.best_baseline(variant, planned["arms"])
    if planned["baseline"] != best:
        lines.append(f"{task}: the baseline is {planned['baseline']!r}, the best one {best!r}")
    return lines + _odd_seeds(planned, task)


def _is_older(planned: dict[str, Any]) -> bool:
    """Whether a task was planned when plans stated its statistic alone."""
    return not planned.keys() & {"over", "better", "minimum", "warm_steps", "measure"}


def _odd_seeds(planned: dict[str, Any], task: str) -> list[str]:
    """Why no plan has this number of seeds at the power that is stated, in a line."""
    seeds, stated = planned["seeds"], planned["power"].values()
    power = min((p for p in stated if not math.isnan(p)), default=1.0)
    allowed = [*range(statistics.FEWEST, statistics.MOST + 1, BLOCK)]
    if seeds in allowed and (power >= statistics.POWER or seeds == allowed[-1]):
        return []
    return [
        f"{task}: seeds: the plan has {seeds}, of power {power}; the code takes one of {allowed}, "
        f"of power {statistics.POWER} or else the most"
    ]


def _not_as_tuned(store: Store, plan: dict[str, Any], task: str, effect: Effect) -> list[str]:
    """In what a task of a plan differs from what the development figures give; one line each."""
    planned, variant, lines = plan["tasks"][task], variants(effect)[task], list[str]()
    chosen, scored = planned["arms"] | planned.get("later", {}), dict[str, dict[str, Any]]()
    for label, made in arms_of(effect, plan["family"], task, planned).items():
        kept = store.kept(variant, made, families.DEVELOPMENT)
        if kept is None or variant.statistic not in kept[variant.over]:
            lines.append(
                f"{task}: the development figures of {label!r} are not kept as the code would "
                "measure them"
            )
            continue
        scored[label] = tuning.scored(variant, kept)
        lines += [
            f"{task}: the {k} of {label!r} is {chosen[label][k]} in the plan, and "
            f"{scored[label][k]} by its development figures"
            for k in ("score", "pass@1")
            if abs(scored[label][k] - chosen[label][k]) > 1e-5
        ]
    lines = lines or _not_the_best(store, variant, plan["family"], task, chosen)
    if lines:
        return lines
    lines = _odd_powers(planned, task, variant, scored)
    pilots = tuning.pilots(scored, _others(planned["arms"], planned["baseline"], plan["family"]))
    sizes = (1, statistics.LARGE + 1)  # of the family, then and now
    needed = sorted({tuning.seeds(pilots, variant.minimum, rows) for rows in sizes})
    # an older plan may have lost an arm that needed more
    if planned["seeds"] not in needed and not (_is_older(planned) and planned["seeds"] > needed[0]):
        said = " or ".join(map(str, needed))
        lines.append(f"{task}: seeds: the plan has {planned['seeds']}, the code would plan {said}")
    return lines


def _not_the_best(
    store: Store, variant: Effect, family: str, task: str, chosen: Mapping[str, dict[str, Any]]
) -> list[str]:
    """The arms whose planned setting is not the best of the grid; one line each."""
    lines, known = list[str](), competitors(variant, family)

    def absent(*_: Any) -> dict[str, Any]:
        raise LookupError

    for label in chosen.keys() & known.keys():
        try:
            best = tuning.tune(dataclasses.replace(store, run=absent), variant, known[label])
        except LookupError:
            lines.append(f"{task}: the development figures of {label!r} are not kept for all rates")
            continue
        lines += [
            f"{task}: the {k} of {label!r} is {chosen[label][k]} in the plan; {best[k]} is the "
            "best of the grid"
            for k in ("learning_rate", "clip")
            if chosen[label][k] != best[k]
        ]
    return sorted(lines)


def _odd_powers(
    planned: dict[str, Any], task: str, variant: Effect, scored: Mapping[str, dict[str, Any]]
) -> list[str]:
    """The stated powers that the development figures do not give; one line each.

    Older plans took the deviation of the pilot as it was, and state none (not a number) where that
    was 0.
    """
    stated, lines = dict(planned["power"]), list[str]()
    stated |= {label: own["power"] for label, own in planned.get("later", {}).items()}
    for label in stated.keys() & scored.keys():
        (pilot,) = tuning.pilots(scored, [label])
        allowed = [tuning.power(pilot, variant.minimum, planned["seeds"])]
        if _is_older(planned):
            deviation = statistics.deviation_above(pilot)
            allowed.append(statistics.power(deviation, variant.minimum, planned["seeds"]))
        power = 1.0 if math.isnan(stated[label]) else stated[label]
        if min(abs(power - each) for each in allowed) > 1e-3:
            lines.append(
                f"{task}: the power against {label!r} is {power} in the plan, and {allowed[0]} by "
                "its development figures"
            )
    return sorted(lines)


def _replaced_arms(plan: dict[str, Any], task: str, effect: Effect) -> set[str]:
    """Labels of the arms of a task of a plan that the code has otherwise, or not at all."""
    planned = plan["tasks"][task]
    described = _described(effect, plan["family"], task, planned)
    stated = planned["described"] | {
        label: chosen["described"] for label, chosen in planned.get("later", {}).items()
    }
    labels = stated.keys() | described.keys()
    return {label for label in labels if stated.get(label) != described.get(label)}


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
