"""Arms of a plan run once more, and their figures compared with those kept."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.lab import plans, stores
from experiments.lab.arms import Arm
from experiments.lab.effect import Effect
from experiments.lab.stores import Store
from experiments.lab.variants import variants


class Again(NamedTuple):
    """An arm of a plan, run once more."""

    task: str
    label: str
    """Of the arm in the plan."""
    key: str
    recorded_on: str
    """Type of the machine that the kept figures come from; empty where none are kept."""
    found: Literal["equal", "differs", "other machine", "not kept"]
    """`other machine`: the figures differ, and the types of the machines too."""
    means: tuple[float, ...] = ()
    """Of the plan's statistic over the seeds: as recorded, and now; empty where none are kept."""


def rerun(
    store: Store,
    plan: dict[str, Any],
    effect: Effect,
    tasks: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Iterator[Again]:
    """Run arms of a plan again at their seeds, and compare their figures with those kept.

    An arm whose figures are not kept is not run.

    Args:
      store: where figures are kept; nothing is written there.
      plan: as committed.
      effect: the experiment of its method.
      tasks: of the plan; empty: all.
      labels: of arms, such as `method` and `ablation: all`; empty: those that have rows.

    Raises:
      ValueError: a task or an arm has no row in the plan.
    """
    _require_known("task", tasks, plan["tasks"])
    for task in tasks or plan["tasks"]:
        planned, variant = plan["tasks"][task], variants(effect)[task]
        made = plans.arms_of(effect, plan["family"], task, planned)
        measured = ["method", *plans.compared_with(plan, effect, task)]
        _require_known("arms", labels, measured)
        bounds = [0, *planned["looks"]]
        for label in labels or measured:
            for begin, end in itertools.pairwise(bounds):
                yield _again(store, variant, task, label, made[label], range(begin, end))


def _again(
    store: Store, effect: Effect, task: str, label: str, given: Arm, seeds: Sequence[int]
) -> Again:
    key, old = store.key(effect, given, seeds), store.kept(effect, given, seeds)
    if old is None:
        return Again(task, label, key, "", "not kept")
    with tempfile.TemporaryDirectory() as folder:
        new = dataclasses.replace(store, directory=Path(folder)).figures(effect, given, seeds)
    found = "differs" if old["machine"] == new["machine"] else "other machine"
    if stores.digest_of_kept(old) == new["digest"]:
        found = "equal"
    means = (float(np.mean(x[effect.over][effect.statistic])) for x in (old, new))
    return Again(task, label, key, old["machine"], found, tuple(means))


def _require_known(name: str, given: Sequence[str], known: Iterable[str]) -> None:
    unknown = sorted({*given} - {*known})
    if unknown:
        raise ValueError(f"{name}={unknown[0]!r} has no row in the plan; use one of {[*known]}")
