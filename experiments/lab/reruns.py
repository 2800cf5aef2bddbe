"""Arms of a plan run once more, and their figures compared with those kept."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from experiments.lab import plans, stores
from experiments.lab.arms import Arm
from experiments.lab.effect import Effect
from experiments.lab.stores import Store
from experiments.lab.variants import variants

NOISE = 0.001
"""Level of the tests of another machine's figures: one honest arm of a thousand fails."""


class Again(NamedTuple):
    """An arm of a plan, run once more."""

    task: str
    label: str
    """Of the arm in the plan."""
    key: str
    recorded_on: str
    """Type of the machine that the kept figures come from; empty where none are kept."""
    found: Literal["equal", "differs", "within noise", "beyond noise", "not kept"]
    """`differs`: on a machine of the same type. On another one rounding differs and sampling
    enlarges that, so its figures are within the noise of the seeds' differences or beyond it."""
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
    before, now = (np.array(x[effect.over][effect.statistic]) for x in (old, new))
    if stores.digest_of_kept(old) == new["digest"]:
        found = "equal"
    elif old["machine"] == new["machine"]:
        found = "differs"
    else:
        found = "within noise" if within_noise(before, now) else "beyond noise"
    means = (float(np.mean(x)) for x in (before, now))
    return Again(task, label, key, old["machine"], found, tuple(means))


def within_noise(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether figures [S] of the same seeds on two machines may differ by rounding alone.

    The mean of their differences must be no further from 0 than chance takes it, by a t test at
    `NOISE`, and the differences must not spread more than independent runs of the seeds would.
    """
    differences = now - before
    if not np.any(differences):
        return True
    spread = float(np.std(differences, ddof=1))
    if spread == 0:
        return False
    t = abs(float(np.mean(differences))) / spread * np.sqrt(len(differences))
    if 2 * stats.t.sf(t, len(differences) - 1) < NOISE:
        return False
    independent = float(np.var(before, ddof=1)) * 2
    ratio = spread**2 / independent if independent else np.inf
    return stats.f.sf(ratio, len(differences) - 1, len(before) - 1) >= NOISE


def _require_known(name: str, given: Sequence[str], known: Iterable[str]) -> None:
    unknown = sorted({*given} - {*known})
    if unknown:
        raise ValueError(f"{name}={unknown[0]!r} has no row in the plan; use one of {[*known]}")
