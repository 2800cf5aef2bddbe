"""The rows of the table of effects: from the recipes and the recorded results."""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import experiments
from experiments import claims
from experiments.effects import handicaps
from experiments.lab import (
    Effect,
    arms,
    differences,
    families,
    files,
    plans,
    reading,
    statistics,
    stores,
)
from experiments.lab.statistics import Comparison
from experiments.lab.variants import variants
from jaxrl.launch import recipes

RESULTS = Path(experiments.__file__).with_name("results")
FORMER = "measured by a former formula"
"""How the regime of a row begins where the recipe has been corrected since, see `Effect.former`."""
TABLE = RESULTS / "README.md"
MEASURED = "measured.json"
"""The file of `RESULTS` that has the measurements of every recipe."""
HISTORY = "history.json"
"""The file of `RESULTS` that says which plans are not in the history."""
NOT_FOUND = "†"
"""Marks a row whose plan is not in the history."""
FIELDS = ("Paper", "Idea", "Formula", "Claim")
"""What the docstring of a recipe with an effect says."""


def rows(methods: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The table: for each method, task and other arm, the last look.

    A comparison that was not measured by this protocol has a row with `measured` false, no figures
    and the status `undecided`. For a method without any measurement these are the rows against its
    ablation and its family's baselines on the task of its regime. The correction within families is
    always that of all methods.
    """
    last, counts, planned = {}, {}, {}
    for name in names():
        path = RESULTS / f"{name}.plan.json"
        planned[name] = json.loads(path.read_text()) if path.exists() else {"tasks": {}}
        tasks = planned[name]["tasks"]
        for row in recorded(name):
            key = (name, row["task"], row["against"], row["other"])
            counts[key] = counts.get(key, 0) + 1
            label = f"{row['against']}: {row['other']}"
            task = row["task"]
            if task in tasks and row["plan_digest"] == plans.of_row(planned[name], task, label):
                last[key] = row
    effects = {name: variants(effect_of(name)) for name in {key[0] for key in last}}
    found = [
        row
        | reading.of_arms(row, RESULTS)
        | {"at_updates": reading.at_updates(row, effects[name][task], RESULTS)}
        for (name, task, *_), row in last.items()
    ]
    fixed = dict(zip(last, reading.corrected(found), strict=True))
    out, lost = [], lost_plans()
    for name in names() if methods is None else methods:
        own = {key: row for key, row in fixed.items() if key[0] == name}
        for key, row in own.items():
            same_task = [other for other in own.values() if other["task"] == row["task"]]
            out.append(
                _shown(name, row, counts[key], planned[name])
                | {"plan_found": row["plan"] not in lost}
                | {"handicap": _handicap(name, row, same_task)}
            )
        out += [_unmeasured(name, *pair) for pair in _unreached(name, planned[name], own)]
    return out


def _unreached(name: str, plan: dict[str, Any], own: Collection[tuple]) -> list[tuple[str, str]]:
    """The task and the label of the other arm of each row of a method that is not measured.

    On a task without a plan these are the ablation and the baselines that its plan will tune.
    """
    family, difference = families.RECIPES[name]
    known = {(task, f"{against}: {other}") for _, task, against, other in own}
    effect, every = effect_of(name), list[tuple[str, str]]()
    for task in variants(effect) if own else ("regime",):
        if task in plan["tasks"] and own:
            labels = plans.compared_with(plan, effect, task)
        else:
            labels = [f"ablation: {difference}"]
            labels.append(f"baseline: {' or '.join(families.BASELINES[family])}")
        every += [(task, label) for label in labels]
    return [pair for pair in every if pair not in known]


def lost_plans() -> set[str]:
    """The commits of plans that were not in the history when `python -m experiments effects
    --history` last looked.

    Read from a file, so that the table is the same in a clone with the last commits alone.
    """
    path = RESULTS / HISTORY
    return set(json.loads(path.read_text())["lost"]) if path.exists() else set()


def record_history() -> dict[str, list[str]]:
    """Write which recorded rows name a plan whose commit is not in the history.

    Returns:
      Commit -> the methods whose rows name it.

    Raises:
      ValueError: the results are in no Git repository, or in a clone without its whole history.
    """
    known, lost = files.history(RESULTS / HISTORY), {}
    for name in names():
        for commit in sorted({row["plan"] for row in recorded(name)} - known):
            lost.setdefault(commit, []).append(name)
    files.write(RESULTS / HISTORY, {"lost": dict(sorted(lost.items()))})
    return lost


def _shown(name: str, row: dict[str, Any], looks: int, plan: dict[str, Any]) -> dict[str, Any]:
    compared, label = row["comparison"], f"{row['against']}: {row['other']}"
    effect = variants(effect_of(name))[row["task"]]
    return {
        "id": identity(name),
        "family": row["family"],
        "task": row["task"],
        "against": row["against"],
        "other": row["other"],
        "further": row["other"] in effect.further,
        "statistic": row["statistic"],
        "effect": round(compared["effect"], 4),
        "interval": [round(compared["low"], 4), round(compared["high"], 4)],
        "better": row["better"],
        "minimum": row["minimum"],
        "p": round(row["p"], 5),
        "means": [round(x, 4) for x in row["means"]],
        "guard": _rounded(row["guard"]),
        "at_tokens": _rounded(row["at_tokens"]),
        "at_updates": _rounded(row["at_updates"]),
        "tokens": row["tokens"],
        "updates": row["updates"],
        "seeds": compared["seeds"],
        "power": _planned_power(plan, row["task"], label),
        "achieved_power": round(_achieved_power(row), 3),
        "corrected_power": round(_achieved_power(row, row["tests"]), 3),
        "best": label == plan["tasks"][row["task"]]["baseline"],
        "looks": looks,
        "status": row["status"],
        "why": row["why"],
        "plan": row["plan"],
        "measured": True,
        "regime": regime(name),
        "over": effect.over,
        "steps": effect.method.steps,
        "setting": _setting(effect),
        "arms": row["arms"],
        "machines": row["machines"],
        "command": rerun_command(name, row["task"], label),
    }


def _planned_power(plan: dict[str, Any], task: str, label: str) -> float | None:
    """The power that a plan states for a row; None where it is older than the row.

    Some plans state none for the quietest pilots (not a number), where it is 1.
    """
    planned = plan["tasks"][task]
    stated = planned["power"].get(label, planned.get("later", {}).get(label, {}).get("power"))
    return 1.0 if stated is not None and math.isnan(stated) else stated


def _achieved_power(row: dict[str, Any], tests: int = 1) -> float:
    """The power for the minimum effect at the observed deviation, with the level over `tests`."""
    got = Comparison(**row["comparison"])
    return statistics.power(got.deviation, row["minimum"], got.seeds, got.level / tests)


def family_rows(family: str) -> int:
    """How many rows the methods of a family have by the code, measured or not."""
    return sum(
        len(arms.parts(each.method, each.ablation)) + len(each.further) + 1
        for name in names()
        if families.RECIPES[name][0] == family
        for each in variants(effect_of(name)).values()
    )


def _handicap(name: str, row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of a row's baseline; empty for an ablation."""
    if row["against"] != "baseline":
        return []
    effect = variants(effect_of(name))[row["task"]]
    return handicaps.of_baseline(name, effect, row, rows, RESULTS)


def _setting(effect: Effect) -> dict[str, Any]:
    """What all arms of a row have in common: rows that differ in it are on no leaderboard together.

    The fields of the plain arm that are not the default's, the steps of the warm start, and what
    measures the figures where the experiment has a measure of its own.
    """
    plain, default = (
        arms.describe(a) for a in (families.plain(effect.method), families.plain(arms.Arm()))
    )
    own = {name: value for name, value in plain.items() if value != default[name]}
    if effect.measure is not None:
        own["measure"] = stores.measured_by(effect)
    return {"steps": effect.method.steps, "warm_steps": effect.warm_steps} | own


def rerun_command(name: str, task: str, label: str) -> str:
    """The command that runs both arms of a row again and compares their figures."""
    wanted = shlex.join(["--task", task, "--arms", "method", label])
    return f"python -m experiments effects {identity(name)} --rerun {wanted}"


def _unmeasured(name: str, task: str, label: str) -> dict[str, Any]:
    against, _, other = label.partition(": ")
    empty = dict.fromkeys(
        (
            "effect", "interval", "p", "means", "guard", "at_tokens", "at_updates", "tokens",
            "updates", "power", "achieved_power", "corrected_power",
        )
    )  # fmt: skip
    effect = variants(effect_of(name))[task]
    return {
        "id": identity(name),
        "family": families.RECIPES[name][0],
        "task": task,
        "against": against,
        "other": other,
        "further": other in effect.further,
        "statistic": effect.statistic,
        "better": effect.better,
        "minimum": effect.minimum,
        **empty,
        "seeds": 0,
        "looks": 0,
        "status": "undecided",
        "why": "not measured",
        "plan": None,
        "plan_found": None,
        "handicap": [],
        "measured": False,
        "regime": regime(name),
        "over": effect.over,
        "steps": effect.method.steps,
        "setting": _setting(effect),
        "arms": [[], []],
        "machines": [[], []],
        "best": against == "baseline",
        "command": None,
    }


def names() -> list[str]:
    """The recipes of which something is claimed, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(claims.__path__))


def effect_of(name: str) -> Effect:
    """The experiment of a recipe."""
    return importlib.import_module(f"{claims.__name__}.{name}").effect()


def regime(name: str) -> list[str]:
    """In what the regime of a recipe's arm differs from the recipe's."""
    effect = effect_of(name)
    lines = differences.regime(recipes.load(name), effect.method, effect.stands_for)
    return [f"{FORMER}: {effect.former}"] * bool(effect.former) + lines


def identity(name: str) -> str:
    """The id of a method."""
    return recipes.identity(name)


def module(name: str) -> ModuleType:
    """A recipe's module."""
    return recipes.module(name)


def source(name: str) -> str:
    """The file of a recipe, from the root of the repository."""
    return f"{module(name).__name__.replace('.', '/')}.py"


def describe(row: dict[str, Any]) -> str:
    """A measured row in words and figures."""
    low, high = row["interval"]
    mine, other = row["means"]
    return (
        f"{row['task']}, against {row['against']} ({row['other']}): {row['statistic']} {mine:.3f} "
        f"against {other:.3f}, {row['effect']:+.3f} [{low:+.3f}, {high:+.3f}], {row['seeds']} "
        f"seeds of power {power(row)} (achieved {row['achieved_power']:.2f}); {said(row)}"
    )


def power(row: dict[str, Any]) -> str:
    """The plan's power of a measured row; a plan that is older than the row states none."""
    return "not planned" if row["power"] is None else f"{row['power']:.2f}"


def said(row: dict[str, Any]) -> str:
    """The status of a row, and why it is undecided where p values alone would decide it."""
    return f"{row['status']} ({row['why']})" if row["why"] else row["status"]


def marked(row: dict[str, Any]) -> str:
    """The id of a row's method, marked where its plan is not in the history."""
    return row["id"] if row["plan_found"] else f"{row['id']} {NOT_FOUND}"


def lost_sentence(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How many of measured rows are marked, as one sentence; none if no row is."""
    lost = [row for row in rows if not row["plan_found"]]
    if not lost:
        return []
    return [
        f"{NOT_FOUND} The plans of {len({row['id'] for row in lost})} methods ({len(lost)} of "
        f"{len(rows)} rows) name a commit that is missing from the history. For these nobody can "
        "verify that the plan came before the result. The protocol says why."
    ]


def _rounded(comparison: dict[str, float] | None) -> list[float] | None:
    """An effect and its interval."""
    return comparison and [round(comparison[k], 4) for k in ("effect", "low", "high")]


def field(doc: str, name: str) -> str:
    """The paragraph of a docstring that begins with `name:`, on one line; empty without."""
    match = re.search(rf"^{name}: (.*(?:\n.+)*?)(?=\n[A-Z]\w+: |\n\n|\Z)", doc, re.MULTILINE)
    return re.sub(r"\s+", " ", match[1]).strip() if match else ""


def module_name(identity_: str) -> str:
    """The name of the recipe of a method's id."""
    return {"1_shot_rlvr": "one_shot_rlvr"}.get(identity_, identity_)


def recorded(name: str) -> list[dict[str, Any]]:
    """Every measurement of a recipe, in order."""
    return measured().get(name, [])


def measured() -> dict[str, list[dict[str, Any]]]:
    """The measurements of all recipes, by name."""
    path = RESULTS / MEASURED
    return json.loads(path.read_text()) if path.exists() else {}


def add_measured(name: str, looks: list[dict[str, Any]]) -> None:
    """Add measurements of a recipe to the file of them all, which has a line for each recipe."""
    before = measured()
    now = {**before, name: [*before.get(name, []), *looks]}
    files.write(RESULTS / MEASURED, dict(sorted(now.items())))
