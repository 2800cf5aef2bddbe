"""The rows of the table of effects: from the recipes and the recorded results."""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import experiments
from experiments import claims
from experiments.effects import fair, handicaps
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
TABLE = RESULTS / "README.md"
MEASURED = "measured.json"
"""The file of `RESULTS` that has the measurements of every recipe."""
HISTORY = "history.json"
"""The file of `RESULTS` that says which plans are not in the history."""
NOT_FOUND, NOT_FIRST = "†", "‡"
"""Mark a row whose plan is not in the history, and one whose figures were there before its plan."""
FIELDS = ("Paper", "Idea", "Formula", "Claim")
"""What the docstring of a recipe with an effect says."""


def rows(methods: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The table: for each method, task and other arm, the last look.

    A comparison that was not measured by this protocol has a row with `measured` false, no figures
    and the status `undecided`. For a method without any measurement these are the rows against its
    ablation and its family's baselines on the task of its regime. The correction is always that of
    all methods. Where the plan's baseline takes more samples than the method, the fair one has a
    row too (`fair`): without figures, unless those of its arm are kept.
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
    effects = {name: effect_of(name) for name in {key[0] for key in last}}
    store, baselines = stores.Store(RESULTS), dict[tuple[str, str], fair.Fair]()
    for name, task in dict.fromkeys(key[:2] for key in last):
        baseline = fair.of_task(store, planned[name], effects[name], task)
        baselines[name, task] = baseline
        key = (name, task, *baseline.label.split(": ", 1))
        if baseline.row and key not in last:
            named = last[name, task, *planned[name]["tasks"][task]["baseline"].split(": ", 1)]
            last[key] = baseline.row | {"plan": named["plan"], "by_plan": False}
            counts[key] = 1
    found = []
    for (name, task, *_), row in last.items():
        variant = variants(effects[name])[task]
        own = {"id": name, "role": _role(row, variant, baselines[name, task], last, name)}
        own["at_updates"] = reading.at_updates(row, variant, RESULTS)
        found.append(row | own | reading.of_arms(row, variant, RESULTS))
    fixed = dict(zip(last, reading.corrected(found), strict=True))
    out, lost, early = [], lost_plans(), early_arms()
    for name in names() if methods is None else methods:
        own = {key: row for key, row in fixed.items() if key[0] == name}
        for key, row in own.items():
            same_task = [other for other in own.values() if other["task"] == row["task"]]
            label, baseline = f"{row['against']}: {row['other']}", baselines[name, row["task"]]
            out.append(
                _shown(name, row, counts[key], planned[name])
                | {"plan_found": row["plan"] not in lost}
                | {"plan_first": not _known_before(row, early)}
                | {"best": label == baseline.label, "larger": label in baseline.larger}
                | {"handicap": _handicap(name, row, same_task)}
            )
        for task, label in _unreached(name, planned[name], own, baselines):
            row = _unmeasured(name, task, label)
            if (name, task) in baselines and label == baselines[name, task].label:
                row["development"] = _short(baselines[name, task].development)
            out.append(row)
    return out


def _role(
    row: dict[str, Any], effect: Effect, baseline: fair.Fair, known: Collection[tuple], name: str
) -> str:
    """What a row is read for: `primary`, `baseline` or `descriptive`.

    Primary is the row of the whole method against its ablation on the task of its regime; the
    baseline row there is the one against the fair baseline.
    """
    if row["task"] != "regime":
        return "descriptive"
    if row["against"] == "baseline":
        fair_one = f"baseline: {row['other']}" == baseline.label
        return "baseline" if fair_one else "descriptive"
    bundle = (name, "regime", "ablation", "all") in known
    whole = row["other"] == "all" or not bundle
    return "primary" if whole and row["other"] not in effect.further else "descriptive"


def _known_before(row: dict[str, Any], early: Collection[str]) -> bool:
    """Whether the figures of both arms of a row were in the history before its plan."""
    return all(any(f"{row['plan']} {key}" in early for key in keys) for keys in row["arms"])


def _unreached(
    name: str,
    plan: dict[str, Any],
    own: Collection[tuple],
    baselines: Mapping[tuple[str, str], fair.Fair],
) -> list[tuple[str, str]]:
    """The task and the label of the other arm of each row of a method that is not measured.

    On a task without a plan these are the ablation and the baselines that its plan will tune; on
    one with a plan, the fair baseline is among them where it is not the plan's.
    """
    family, difference = families.RECIPES[name]
    known = {(task, f"{against}: {other}") for _, task, against, other in own}
    effect, every = effect_of(name), list[tuple[str, str]]()
    for task in variants(effect) if own else ("regime",):
        if task in plan["tasks"] and own:
            labels = plans.compared_with(plan, effect, task)
            if (name, task) in baselines:
                labels = list(dict.fromkeys([*labels, baselines[name, task].label]))
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


def early_arms() -> set[str]:
    """`PLAN ARM` of the figures whose first commit does not follow that of the plan that a row of
    theirs names, as `--history` last recorded them."""
    path = RESULTS / HISTORY
    return set(json.loads(path.read_text()).get("early", ())) if path.exists() else set()


def record_history() -> dict[str, list[str]]:
    """Write which recorded rows name a plan whose commit is not in the history, and of which arms
    the first commit does not follow the plan's.

    Returns:
      Commit -> the methods whose rows name it.

    Raises:
      ValueError: the results are in no Git repository, or in a clone without its whole history.
    """
    order, lost, early = files.history(RESULTS / HISTORY), {}, set[str]()
    first = files.first_commits(RESULTS / HISTORY, "arms/*.json")
    for name in names():
        for row in recorded(name):
            commit = row["plan"]
            if commit not in order:
                named = lost.setdefault(commit, [])
                named += [name] * (name not in named)
                continue
            keys = {key for keys in row["arms"] for key in keys} & first.keys()
            early |= {f"{commit} {k}" for k in keys if order[first[k]] <= order[commit]}
    files.write(RESULTS / HISTORY, {"lost": dict(sorted(lost.items())), "early": sorted(early)})
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
        "role": row["role"],
        "tests": row["tests"],
        "p_same": round(row["p_same"], 5),
        "by_plan": row.get("by_plan", True),
        "development": None,
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
    if label not in planned["power"] | planned.get("later", {}):
        return None
    stated = planned["power"].get(label, planned.get("later", {}).get(label, {}).get("power"))
    return 1.0 if stated is not None and math.isnan(stated) else stated


def _achieved_power(row: dict[str, Any]) -> float:
    """The power for the minimum effect at the observed deviation, before any correction."""
    got = Comparison(**row["comparison"])
    return statistics.power(got.deviation, row["minimum"], got.seeds, got.level)


def _short(compared: Comparison | None) -> dict[str, Any] | None:
    """Effect, interval and seeds of a comparison, rounded."""
    if compared is None:
        return None
    interval = [round(compared.low, 4), round(compared.high, 4)]
    return {
        "effect": round(compared.effect, 4), "interval": interval, "seeds": compared.seeds,
    }  # fmt: skip


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
            "updates", "power", "achieved_power", "p_same", "development",
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
        "plan_first": None,
        "by_plan": False,
        "role": "descriptive",
        "tests": 0,
        "larger": False,
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
    return differences.regime(recipes.load(name), effect.method, effect.stands_for)


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
    """The id of a row's method, marked where the history does not show its plan before it."""
    return f"{row['id']} {mark(row)}".rstrip()


def mark(row: dict[str, Any]) -> str:
    """The mark of a row that the history does not show to be planned; empty of the others."""
    if not row["plan_found"]:
        return NOT_FOUND
    return "" if row["plan_first"] else NOT_FIRST


def lost_sentence(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How many of measured rows have a mark, a sentence each; none if no row has one."""
    marks = {
        NOT_FOUND: "name a plan whose commit is missing from the history, so nobody can verify "
        "that it came before the result",
        NOT_FIRST: "compare figures that were in the history before the plan that they name",
    }
    out = []
    for sign, why in marks.items():
        own = [row for row in rows if mark(row) == sign]
        if own:
            out.append(
                f"{sign} {len(own)} of {len(rows)} rows, of {len({row['id'] for row in own})} "
                f"methods, {why}."
            )
    return out


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
