"""`python -m experiments effects`: measure what methods do, by the protocol of
`experiments/lab/PROTOCOL.md`.

Plans and results are files of `experiments/results`; `experiments/results/README.md` is generated
from them and from the recipes' docstrings.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from experiments import lab
from experiments.effects import claims_page, fair, markdown, real, scales, table
from experiments.effects.options import Options, require_sense
from experiments.lab import (
    arms,
    differences,
    families,
    files,
    measurement,
    plans,
    reruns,
    stores,
    views,
)
from experiments.lab.variants import variants
from jaxrl.functions import nearest
from jaxrl.launch import recipes
from jaxrl.launch.cli import refused
from jaxrl.launch.settings import flags


def main(argv: list[str]) -> int:
    """Do what the options ask for."""
    options = flags.parse(Options(), argv, prog="python -m experiments effects")
    try:
        require_sense(options)
    except ValueError as error:
        return refused(error)
    if options.real and options.rerun:
        return _rerun_real(options.methods)
    methods = [table.module_name(name) for name in options.methods]
    for name in methods:
        if name not in table.names():
            return refused(ValueError(f"no effect {name!r}; {nearest(name, table.names())}"))
    methods = methods or table.names()
    if options.check:
        return check(methods)
    if options.json:
        rows = table.rows(methods if options.methods else None)
        print(json.dumps(rows, indent=1, allow_nan=False))
        return 0
    if options.table:
        _write_pages()
        return 0
    said = functools.partial(Console().print, highlight=False)
    try:
        if options.real:
            _real(methods if options.methods else [], options, said)
        elif options.html:
            _write_html(options.html, methods if options.methods else None)
        elif options.queue:
            queue(methods, said)
        elif options.fair:
            _fair(methods, said)
        elif options.rerun:
            return rerun(methods, said, [options.task] * bool(options.task), options.arms)
        elif options.history:
            lost = table.record_history()
            said(f"{len(lost)} commits of plans are not in the history")
            _write_pages()
        else:
            for name in methods:
                _one(name, options, said)
    except ValueError as error:
        return refused(error)
    return 0


def _real(methods: Sequence[str], options: Options, said: Callable[[str], None]) -> None:
    if options.plan:
        real.write_plan(said)
        return
    _politely()
    real.measure(methods, said, _write_pages)
    said(scales.headline())


def _rerun_real(names: Sequence[str]) -> int:
    """Do runs of the real model again; 1 if one differs, 2 if there is none of a name."""
    if not names:
        return refused(ValueError("--real --rerun: name runs, such as `grpo.0`"))
    _politely()
    differing = 0
    try:
        for name in names:
            differs, line = real.rerun(name)
            print(line)
            differing += differs
    except ValueError as error:
        return refused(error)
    return int(differing > 0)


def _one(name: str, options: Options, said: Callable[[str], None]) -> None:
    if options.steps:
        effect, seeds = table.effect_of(name), families.DEVELOPMENT[:2]
        said(f"{name}: {lab.run(effect, seeds=seeds, steps=options.steps)}")
    elif options.plan:
        write_plan(name, said)
    else:
        measure(name, said)
    jax.clear_caches()  # a process can hold the programs of some ten experiments, not of all


def queue(methods: Sequence[str], said: Callable[[str], None]) -> None:
    """Plan and measure methods, the cheapest first, and commit what is written.

    A plan that exists is kept, and gets what tasks and arms it lacks; one that is not what the code
    would measure is named. Rows that exist are kept, and those that the plan has beside them are
    measured. Arms that were run are not run again, so that a queue which was stopped continues
    where it was. At the end it looks again for the plans that
    are in the history.
    """
    _politely()
    for name in sorted(methods, key=lambda n: plans.cost(n, table.effect_of(n))):
        path = table.RESULTS / f"{name}.plan.json"
        try:
            if _lacks(path, name):
                write_plan(name, said)
                files.commit([path, table.RESULTS / "arms"], f"Plan of {name}")
            if not (left := missing(name)):
                _require_planned(name, _store(said))
            else:
                measure(name, said, left)
                made = [table.RESULTS / table.MEASURED, table.RESULTS / "arms"]
                files.commit([*made, *_pages()], f"Effect of {name}, as planned")
        except ValueError as error:  # the other methods are measured all the same
            said(f"{name}: {error}")
        jax.clear_caches()
    _refresh_history(said)


def _refresh_history(said: Callable[[str], None]) -> None:
    """Write again which plans are in the history, and commit it with the pages if it changed."""
    path = table.RESULTS / table.HISTORY
    before = path.read_text() if path.exists() else ""
    try:
        table.record_history()
    except ValueError as error:  # such as in a clone without the whole history
        said(f"{path.name} is left as it is: {error}")
        return
    if path.read_text() != before:
        _write_pages()
        files.commit([path, *_pages()], "Plans that are in the history")


def _lacks(path: Path, name: str) -> bool:
    """Whether the plan of a method is missing, or lacks a task or an arm."""
    if not path.exists():
        return True
    planned = json.loads(path.read_text())["tasks"]
    found, family = variants(table.effect_of(name)), families.RECIPES[name][0]
    return planned.keys() != found.keys() or any(
        plans.unplanned(found[task], family, planned[task]) for task in planned
    )


def missing(name: str) -> list[tuple[str, str]]:
    """The rows of a method's plan that are not measured: task, and label of the other arm."""
    plan = json.loads((table.RESULTS / f"{name}.plan.json").read_text())
    effect = table.effect_of(name)
    known = {
        (row["task"], f"{row['against']}: {row['other']}")
        for row in table.rows([name])
        if row["measured"]
    }
    every = [(t, label) for t in plan["tasks"] for label in plans.compared_with(plan, effect, t)]
    return [pair for pair in every if pair not in known]


def write_plan(name: str, said: Callable[[str], None]) -> None:
    """Tune all arms of a method on development seeds, and write its plan.

    Tasks of an earlier plan that the code would measure as planned stay as they are.
    """
    effect = table.effect_of(name)
    differing = differences.unlike(recipes.load(name), effect.method)
    if differing:
        raise ValueError(f"{name}: the arm is not the recipe: {'; '.join(differing)}")
    path = table.RESULTS / f"{name}.plan.json"
    old = json.loads(path.read_text()) if path.exists() else None
    rows = table.family_rows(families.RECIPES[name][0])
    plan = plans.make(_store(said), name, effect, old, rows)
    files.write(path, plan)
    said(f"{name}: planned {[(t, p['seeds'], p['baseline']) for t, p in plan['tasks'].items()]}")


def measure(
    name: str, said: Callable[[str], None], pairs: Collection[tuple[str, str]] = ()
) -> None:
    """Measure a method by its plan, and record every look.

    Args:
      name: of the method.
      said: is told of every row.
      pairs: (task, label of the other arm) of the rows to measure; empty: those that are missing.
        Without such rows nothing is written.

    Raises:
      ValueError: the plan is missing, is not committed, or is not what the code would measure.
    """
    path, effect = table.RESULTS / f"{name}.plan.json", table.effect_of(name)
    commit = files.committed(path)
    plan = _require_planned(name, _store(said))
    left = pairs or missing(name)
    if not left:
        said(f"{name}: all rows of the plan are measured; `--rerun` runs their arms again")
        return
    table.add_measured(name, list(measurement.measure(_store(said), plan, effect, commit, left)))
    _write_pages()
    for row in table.rows([name]):
        if row["measured"]:  # a fair baseline may be known by development seeds alone
            said(f"{name}: {table.describe(row)}")


def _fair(methods: Sequence[str], said: Callable[[str], None]) -> None:
    """Run what is left of the fair baselines, those of the regimes first, and write the pages."""
    _politely()
    store, planned = _store(said), {}
    for name in methods:
        plan = json.loads((table.RESULTS / f"{name}.plan.json").read_text())
        planned |= {(task != "regime", name, task): plan for task in plan["tasks"]}
    for (_, name, task), plan in sorted(planned.items(), key=lambda item: item[0]):
        if label := fair.measure(store, plan, table.effect_of(name), task):
            said(f"{name}, {task}: {label}")
    _write_pages()


def _require_planned(name: str, store: stores.Store) -> dict[str, Any]:
    """The plan of a method.

    Raises:
      ValueError: it is not what the code would measure.
    """
    path = table.RESULTS / f"{name}.plan.json"
    plan = json.loads(path.read_text())
    if differing := plans.differences(plan, name, table.effect_of(name), store):
        raise ValueError(
            f"{path.name} is not what would be measured: {'; '.join(differing)}. Nothing is "
            "written; restore the code, or make another plan (`python -m experiments effects "
            f"--plan {name}`) and commit it"
        )
    return plan


def rerun(
    methods: Sequence[str],
    said: Callable[[str], None],
    tasks: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> int:
    """Run what was measured again and say which arms give the same figures.

    Args:
      methods: that have a plan.
      said: called with a line for each arm.
      tasks: of the plans; empty: all.
      labels: of arms, such as `method`; empty: all that have rows.

    Returns:
      1 if an arm differs, on another type of machine beyond noise, or if none of a method is kept.

    Raises:
      ValueError: a method has no plan, or its plan no such task or arm.
    """
    differing, here = 0, views.machine()
    for name in methods:
        path = table.RESULTS / f"{name}.plan.json"
        if not path.exists():
            raise ValueError(f"{path.name} is missing: there is nothing to run again")
        plan, effect = json.loads(path.read_text()), table.effect_of(name)
        compared = 0
        for again in reruns.rerun(_store(said), plan, effect, tasks, labels):
            line = f"{name}: {again.task}, {again.label}, arm {again.key}: {again.found}"
            if again.means:
                line += "; mean {:.4f} recorded, {:.4f} now".format(*again.means)
            if again.recorded_on not in ("", here):
                line += (
                    f"; it was recorded on another type of machine ({again.recorded_on}) than this "
                    f"({here}), whose rounding may differ"
                )
            said(line)
            differing += again.found in ("differs", "beyond noise")
            compared += again.found != "not kept"
        if not compared:
            said(f"{name}: no arm is kept as the code would run it, so nothing was compared")
            differing += 1
    return int(differing > 0)


def check(methods: Sequence[str]) -> int:
    """Print in what arms differ from recipes, and overlaps of splits; 1 if there are any.

    Differences of the regime are printed too. The protocol allows them, so they are no problems.
    """
    wrong = 0
    for name in methods:
        own = table.identity(name)
        for line in problems(name):
            print(f"{own}: {line}")
            wrong += 1
        for line in table.regime(name):
            print(f"{own}: regime differs: {line}")
    print(f"{len(methods)} methods, {wrong} problems")
    return int(wrong > 0)


def problems(name: str, seeds: Sequence[int] = (0, 1, 2)) -> list[str]:
    """What is wrong with the experiment of a recipe; one line each."""
    config, effect = recipes.load(name), table.effect_of(name)
    lines = differences.unlike(config, effect.method) + _not_as_planned(name, effect)
    own = effect.method.rewards is not None and effect.method.rewards != effect.ablation.rewards
    known = {config.task, *config.extensions}
    if effect.stands_for and effect.stands_for not in known:
        lines.append(f"stands_for={effect.stands_for!r}: the recipe has {sorted(known)}")
    if own and not effect.stands_for:
        lines.append("rewards: the ablation has others; name what they are in stands_for")
    if name not in families.RECIPES:
        lines.append("family: the recipe is missing in experiments/lab/families.py")
    if not arms.parts(effect.method, effect.ablation):
        lines.append("ablation: it is the method")
    for variant, made in variants(effect).items():
        for seed in seeds:
            shared = overlap(made.task, seed)
            if shared:
                lines.append(f"{variant}: {shared} held-out prompts of seed {seed} are trained on")
    return lines


def _not_as_planned(name: str, effect: lab.Effect) -> list[str]:
    """In what the arms are not those of the method's plan; a changed recipe changes them."""
    path = table.RESULTS / f"{name}.plan.json"
    return plans.differences(json.loads(path.read_text()), name, effect) if path.exists() else []


def overlap(task: lab.Task, seed: int) -> int:
    """How many held-out problems of an instance are trained on or demonstrated.

    Problems are told apart by their prompt, and by what is hidden where the environment hides it.
    """
    made = task.make(seed)
    hidden = task.respond is not None  # then a problem is its prompt and its table

    def contents(split: lab.Problems) -> set[bytes]:
        parts = [split.prompt, split.answer] if hidden else [split.prompt]
        return {row.tobytes() for row in np.concatenate(parts, axis=1)}

    return len((contents(made.train) | contents(made.demonstrations)) & contents(made.test))


def _politely() -> None:
    """At the lowest priority from here on."""
    os.nice(max(0, 19 - os.nice(0)))


def _write_html(target: str, methods: Sequence[str] | None) -> None:
    """The page of methods; None: of all."""
    from experiments.effects import page

    about = table.RESULTS, scales.headline(), scales.table()
    text = page.page(table.rows(methods), *about)
    try:
        Path(target).write_text(text)
    except OSError as error:
        raise ValueError(
            f"html={target!r}: {error.strerror}; name a file in a folder that exists"
        ) from error


def _pages() -> list[Path]:
    """What `_write_pages` writes, where it is present."""
    pages = (table.TABLE, claims_page.PAGE, claims_page.PICTURE, claims_page.SHORT)
    return [path for path in pages if path.exists()]


def _write_pages() -> None:
    table.TABLE.write_text(markdown.markdown(scales.markdown()))
    claims_page.write()


def _store(said: Callable[[str], None]) -> stores.Store:
    return stores.Store(table.RESULTS, said=said)
