"""`python -m experiments effects --real`: methods on SmolLM2-135M, each against GRPO in the same
regime.

A method and GRPO differ on the real model in what the method and its ablation differ in in the lab.
Everything else is that of `shared` in both. A directory holds `plan.json` and `runs.jsonl`, a line
for each run, so that a measurement which was stopped continues where it was.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

from experiments.effects import table
from experiments.lab import arms, families, files, scales, views
from experiments.lab.arms import Arm
from experiments.lab.reruns import NOISE
from experiments.lab.variants import variants
from jaxrl.config import Config
from jaxrl.data import tasks
from jaxrl.launch import recipes
from jaxrl.record import jsonl
from jaxrl.run import loop
from jaxrl.training.objective import ObjectiveConfig

BASELINE = "grpo"
RUNS = "runs.jsonl"
SEEDS = {"baseline": 5, "method": 3}
STATISTIC = "pass@1"
TASK, AGAINST = "neutral", "ablation"
"""The lab's rows that are compared with the real model: those without the whole method."""
WITHOUT = {"advantage": {"mgpo": {"strength": 0.0}}}
"""Functions of an objective -> settings that make them GRPO's own."""
Run = Callable[[Config], dict[str, Any]]
"""A run's figures, `STATISTIC` among them."""


def directory() -> Path:
    """Where plan and results are."""
    return table.RESULTS / "real"


def read_runs() -> dict[tuple[str, int], dict[str, Any]]:
    """(method, seed) -> the figures of a run, and what they were measured with; of all runs."""
    path = directory() / RUNS
    rows = jsonl.read(path) if path.exists() else ()
    return {(row["method"], row["seed"]): row for row in rows}


def write_run(run: dict[str, Any]) -> None:
    """Add a run, in place of an earlier one of its method and seed."""
    by_seed = read_runs() | {(run["method"], run["seed"]): run}
    path = directory() / RUNS
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(by_seed[key]) + "\n" for key in sorted(by_seed)))
    os.replace(part, path)


def shared(seed: int = 0) -> Config:
    """GRPO on the real model: what a method is put into, and compared with."""
    base = recipes.load("smollm2")
    grpo = dataclasses.replace(base.objective, aggregation="seq-mean-token-mean")
    return dataclasses.replace(base, objective=grpo, seed=seed, recipe=BASELINE)


def unfit(name: str) -> list[str]:
    """Why a method cannot be compared with GRPO at both scales; one line each, empty if it can."""
    own, effect, plain = recipes.load(name), table.effect_of(name), Arm()
    method, found, lines = effect.method, variants(effect), []
    if not effect.on_real_model:
        lines.append("it is not measured on the tasks of those chosen for the real model")
    if TASK not in found or found[TASK].statistic != STATISTIC:
        lines.append(f"the lab has no {STATISTIC} of it on the {TASK} task")
    regime = ("updates_per_batch", "oversampling", "temperature", "delay", "sync_every")
    for field in regime:
        if (value := getattr(method, field)) != getattr(plain, field):
            lines.append(f"its regime has {field}={value}, that of the real model has not")
    if method.before is not None:
        lines.append("it reads an earlier run")
    beside = ("domains",) if _alternates(own) else ("domains", "stages")
    lines += [f"its recipe has {f}, which the real model's task has not"
              for f in beside if getattr(own, f)]  # fmt: skip
    if own.task != "arithmetic":
        lines.append(f"its recipe is of the task {own.task}")
    kept = _kept(effect.ablation)
    if kept:
        lines.append(f"its ablation is not GRPO: {', '.join(kept)}")
    return lines


def _alternates(config: Config) -> bool:
    """Whether a recipe's stages change the objective alone: its arm has them in its objective."""
    names = {name for fields in config.stages.values() for name in fields}
    return bool(names) and all(n == "period" or n.startswith("objective.") for n in names)


def _kept(ablation: Arm) -> list[str]:
    """In what an ablation differs from GRPO, the aggregation aside."""
    plain = arms.describe(families.plain(ablation))
    objective = arms.flat(arms.describe(ablation.objective))
    for field, known in WITHOUT.items():
        args = known.get(objective[field])
        if args == getattr(ablation.objective, f"{field}_args"):
            objective = arms.flat(arms.describe(_plain_in(ablation.objective, field)))
    grpo = arms.flat(arms.describe(ObjectiveConfig(aggregation=ablation.objective.aggregation)))
    lines = [f"{path}={value}" for path, value in objective.items() if grpo.get(path) != value]
    own = arms.describe(ablation) | {"objective": None, "learning_rate": None}
    plain |= {"objective": None, "learning_rate": None}
    return lines + [name for name, value in own.items() if plain.get(name) != value]


def _plain_in(objective: ObjectiveConfig, field: str) -> ObjectiveConfig:
    plain = ObjectiveConfig()
    both = (field, f"{field}_args")
    return dataclasses.replace(objective, **{name: getattr(plain, name) for name in both})


def config_of(name: str, seed: int) -> Config:
    """The run of a method on the real model, or of `BASELINE`.

    Raises:
      ValueError: the method cannot be compared there.
    """
    base = shared(seed)
    if name == BASELINE:
        return base
    if reasons := unfit(name):
        raise ValueError(f"{name} is not measured on the real model: {'; '.join(reasons)}")
    own = configured(name)
    objective = dataclasses.replace(own.objective, aggregation=base.objective.aggregation)
    fields = {"curriculum": own.curriculum, "extensions": own.extensions}
    return dataclasses.replace(base, recipe=name, objective=objective, **fields)


def configured(name: str) -> Config:
    """The config of a method; what its stages alternate between is in the objective."""
    own = recipes.load(name)
    if not _alternates(own):
        return own
    objective = table.effect_of(name).method.objective
    return dataclasses.replace(own, objective=objective, stages={})


def fitting() -> list[str]:
    """All methods that can be compared with GRPO at both scales."""
    return [name for name in table.names() if not unfit(name)]


def plan_of(methods: Sequence[str], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is to be measured, written before any result.

    Args:
      methods: those that are compared with the baseline.
      defaults: those that an earlier plan holds. They are kept, so that a run of the same settings
        has the same digest under both plans.
    """
    known = _defaults() | dict(defaults or {})
    return {
        "model": shared().model,
        "steps": shared().steps,
        "statistic": STATISTIC,
        "lab": {"task": TASK, "against": AGAINST, "over": "final"},
        "seeds": SEEDS,
        "task": _task_digest(),
        "methods": list(methods),
        "described": {name: described(name, known) for name in [BASELINE, *methods]},
        "defaults": known,
    }


def described(name: str, defaults: Mapping[str, Any]) -> str:
    """Digest of the settings of a run that differ from their defaults; the seed is left out.

    Args:
      name: of a method, or `BASELINE`.
      defaults: path of a field -> its default when the plan was written, so that a default that has
        changed since is a setting. A field that was added later has its present default.
    """
    known = _defaults() | dict(defaults)
    own = arms.flat(arms.describe(config_of(name, known["seed"])))
    return files.digest({k: v for k, v in own.items() if known.get(k, ...) != v})


def _defaults() -> dict[str, Any]:
    """Path of a field -> its default, as JSON holds it."""
    return json.loads(json.dumps(arms.flat(arms.describe(Config()))))


@functools.cache
def _task_digest() -> str:
    """Of the first problems that the real model is trained and judged on."""
    task, made = tasks.get(shared().task, **shared().task_args), hashlib.blake2b(digest_size=8)
    for split in ("train", "test"):
        for index in range(64):
            problem = task.problem(split, 0, index)
            made.update(json.dumps([problem.prompt, problem.answer]).encode())
    return made.hexdigest()


def planned() -> dict[str, Any]:
    """The plan; without one, that of no methods."""
    path = directory() / "plan.json"
    if not path.exists():
        return {"task": "", "seeds": SEEDS, "methods": [], "described": {}, "defaults": {}}
    return json.loads(path.read_text())


def write_plan(said: Callable[[str], None]) -> None:
    """The plan of all methods that fit; runs of the same settings count under the new plan too."""
    plan = plan_of(fitting(), planned()["defaults"])
    files.write(directory() / "plan.json", plan)
    said(f"planned: {len(wanted(plan))} runs, of {BASELINE} and {', '.join(plan['methods'])}")


def wanted(plan: dict[str, Any]) -> list[tuple[str, int]]:
    """(method, seed) of all runs of a plan, in their order: the baseline's come first."""
    out = [(BASELINE, seed) for seed in range(plan["seeds"]["baseline"])]
    return out + [(n, seed) for n in plan["methods"] for seed in range(plan["seeds"]["method"])]


def trained(config: Config) -> dict[str, Any]:
    """Held-out greedy accuracy before and after a run of a config, and the tokens it trained on."""
    with tempfile.TemporaryDirectory() as folder:
        summary = loop.train(dataclasses.replace(config, run_dir=folder))
    before, after = (float(summary["eval"][when][STATISTIC]) for when in ("before", "after"))
    return {STATISTIC: after, "before": before, "tokens": int(summary["tokens"])}


def measure(
    methods: Sequence[str],
    said: Callable[[str], None],
    publish: Callable[[], None],
    run: Run = trained,
) -> None:
    """Do the runs of the plan that are not done, and commit each.

    Args:
      methods: of the plan, beside the baseline; empty: all.
      said: is told of every run.
      publish: writes the table again; it is committed with the run.
      run: trains a config.

    Raises:
      ValueError: the plan is missing, is not committed, is not what the code would run, or has not
        one of the methods.
    """
    commit = files.committed(directory() / "plan.json")
    plan, code = planned(), files.head(directory())
    if others := sorted({*methods} - {*plan["methods"]}):
        reasons = [f"{name}: {'; '.join(unfit(name)) or 'it fits'}" for name in others]
        raise ValueError(f"{'. '.join(reasons)}. The plan has {', '.join(plan['methods'])}")
    now = json.loads(json.dumps(plan_of(plan["methods"], plan["defaults"])))
    del now["defaults"]  # has fields added later; `described` shows whether a default has changed
    if differing := [k for k, v in now.items() if plan.get(k) != v]:
        raise ValueError(
            f"the plan of the real model is not what would be measured: {', '.join(differing)} "
            "differ. Restore the code, or make and commit another plan (`python -m experiments "
            "effects --real --plan`)"
        )
    for name, seed in wanted(plan):
        if name not in [BASELINE, *(methods or plan["methods"])] or _result(
            plan, read_runs(), name, seed
        ):
            continue
        began = time.perf_counter()
        figures = run(config_of(name, seed))
        minutes = round((time.perf_counter() - began) / 60, 1)
        kept = {"task": plan["task"], "described": plan["described"][name], "plan": commit}
        made = {"machine": views.machine(), "minutes": minutes, "code": code}
        named = {"method": name, "seed": seed} | figures | kept | made
        write_run(named | {"digest": digest(figures)})
        publish()
        files.commit([directory() / RUNS, table.TABLE], f"Real model: {name}, seed {seed}")
        said(f"{name}, seed {seed}: {figures[STATISTIC]:.3f} ({minutes} min)")
        jax.clear_caches()


def digest(run: dict[str, Any]) -> str:
    """Of a run's figures."""
    return files.digest([run[name] for name in (STATISTIC, "before", "tokens")])


def rerun(name: str, run: Run = trained) -> tuple[bool, str]:
    """Do a run of the plan again, and compare its figures with those kept.

    Args:
      name: of the run, `METHOD.SEED`.
      run: trains a config.

    Returns:
      Whether the figures differ, on another type of machine beyond noise, and that in words.

    Raises:
      ValueError: there is no such run of the plan.
    """
    plan, (method, _, seed) = planned(), name.rpartition(".")
    method = table.module_name(method)
    known = {f"{own}.{number}" for own, number in wanted(plan)}
    old = _result(plan, read_runs(), method, int(seed)) if f"{method}.{seed}" in known else None
    if old is None:
        raise ValueError(f"there is no run {name!r} of the plan that is done")
    new = run(config_of(method, int(seed)))
    if digest(old) == digest(new):
        found = "equal"
    elif old["machine"] == views.machine():
        found = "differs"
    else:
        found = _compared(new, old, runs(plan))
    figures = f"{STATISTIC} {old[STATISTIC]:.4f} recorded, {new[STATISTIC]:.4f} now"
    return found in ("differs", "beyond noise"), f"{name}: {found}; {figures}"


def _compared(
    new: dict[str, Any], old: dict[str, Any], done: Mapping[str, Sequence[dict[str, Any]]]
) -> str:
    """Whether a run on another type of machine is within what other runs of an arm differ by."""
    itself = (old["method"], old["seed"])
    figures = [
        [run[STATISTIC] for run in own if (run["method"], run["seed"]) != itself]
        for own in done.values()
    ]
    spread = scales.pooled(figures)
    if spread is None:
        raise ValueError("no method has two other runs, so their noise is not known; do more runs")
    freedom = sum(len(own) - 1 for own in figures if len(own) > 1)
    edge = stats.t.ppf(1 - NOISE / 2, freedom) * spread * np.sqrt(2)
    within = abs(new[STATISTIC] - old[STATISTIC]) <= edge
    return "within noise" if within else "beyond noise"


def _result(
    plan: dict[str, Any], done: Mapping[tuple[str, int], dict[str, Any]], name: str, seed: int
) -> dict[str, Any] | None:
    """A run of the plan, if it is there and was of the same task and settings."""
    run = done.get((name, seed))
    if run is None:
        return None
    same = (run["task"], run["described"]) == (plan["task"], plan["described"][name])
    return run if same else None


def runs(plan: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of a plan that are done, by method."""
    found, done = {name: [] for name in plan["described"]}, read_runs()
    for name, seed in wanted(plan):
        if run := _result(plan, done, name, seed):
            found[name].append(run)
    return found
