"""Prompts chosen by the rewards that an earlier run had for them, `RUN/history.jsonl`.

`jaxrl.rollout.rollout_log.HistoryLog` writes that file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl import config as configs
from jaxrl import functions
from jaxrl.config import CurriculumConfig
from jaxrl.data.selection import bandits, curriculum
from jaxrl.data.types import Problem, Task
from jaxrl.record import jsonl, storage


class History(NamedTuple):
    """The rewards of N prompts."""

    problems: list[str]
    """Their ids, in the order of their first use."""
    domains: list[str]
    curves: list[list[float]]
    """Of each prompt, its mean reward at every visit."""


def read(run: str | Path) -> History:
    """The history of a run.

    Raises:
      ValueError: it has none.
    """
    path = storage.locate(run) / "history.jsonl"
    if not path.exists():
        raise ValueError(
            f"history={str(run)!r}: no history.jsonl there; name the directory of a run without "
            "rollout.in_flight"
        )
    curves: dict[tuple[str, str], list[float]] = {}
    for row in jsonl.read(path):
        rows = zip(row["domains"], row["problems"], row["rewards"], strict=True)
        for domain, problem, reward in rows:
            curve = curves.setdefault((domain, problem), [])
            if reward is not None:
                curve.append(reward)
    return History([p for _, p in curves], [d for d, _ in curves], list(curves.values()))


def store(curves: Sequence[Sequence[float]]) -> curriculum.Prompts:
    """The mean rewards of N prompts, visit by visit, as a store of them.

    Its window is the median number of visits of those that had any, so that the end of an epoch
    that only some saw does not count; of each prompt it holds at most the first `window` visits.
    """
    visits = [len(curve) for curve in curves if curve] or [1]
    window = int(np.median(visits))
    prompts = curriculum.start(len(curves), window=window)
    for i, curve in enumerate(curves):
        first = curve[:window]
        prompts.curve[i, window - len(first) :] = first
        prompts.visits[i] = len(first)
    return prompts


def weaknesses(run: str | Path, names: Sequence[str]) -> np.ndarray:
    """Factors [D] of the weights of domains by what an earlier run of them failed, as in SwS.

    See `jaxrl.data.selection.bandits.weaknesses`.

    Raises:
      ValueError: no such run, or one that never saw one of the domains.
    """
    history = read(run)
    if missing := sorted(set(names) - set(history.domains)):
        raise ValueError(
            f"bandit.history={str(run)!r} has no prompts of {missing}; name a run of domains "
            f"{sorted(names)}"
        )
    mask = np.isin(history.domains, names)
    domains = np.array([names.index(d) for d in history.domains if d in names])
    failing = curriculum.failing(store(history.curves))[mask]
    return bandits.weaknesses(failing, domains, len(names))


def best(settings: CurriculumConfig, task: Task) -> tuple[Task, int]:
    """The task with the `settings.keep` train prompts that score highest in an earlier run alone.

    Historical variance finds the prompts of 1-shot RLVR (Wang et al. 2025), `learning_impact` those
    of LIMR (Li et al. 2025).

    Args:
      settings: names the run, the score and how many to keep.
      task: of both runs.

    Returns:
      The task, its train split now `settings.keep` problems, and the seed of its problems.

    Raises:
      ValueError: no such run, one of another task, or too few prompts that have a score.
    """
    history = read(settings.history)
    run = configs.load(storage.locate(settings.history) / "config.json")
    if (run.task, run.task_args, run.domains) != (task.name, dict(task.params), {}):
        raise ValueError(
            f"history={settings.history!r} is of task {run.task!r} with {run.task_args}, not of "
            f"{task.name!r} with {dict(task.params)}; name a run of this task"
        )
    prompts = store(history.curves)
    score = functions.resolve(settings.score, {}, {"state"})(prompts)
    try:
        _, ids = curriculum.highest(prompts, settings.keep, np.ones(len(score), bool), score)
    except ValueError as error:
        raise ValueError(
            f"keep={settings.keep} of history={settings.history!r}: {error} by {settings.score}, "
            "which asks for several visits of each; keep fewer, or let that run see its prompts "
            "more often (--curriculum.choose jaxrl.data.selection.curriculum:uniform "
            "--curriculum.prompts N)"
        ) from error
    visits = sum(len(curve) for curve in history.curves)
    count = task.sizes.get("train", max(run.curriculum.prompts, visits))
    places = _places(task, run.seed, [history.problems[i] for i in ids], count)

    def problem(split: str, seed: int, index: int) -> Problem:
        return task.problem(split, seed, places[index] if split == "train" else index)

    sizes = {**task.sizes, "train": len(places)}
    return dataclasses.replace(task, problem=problem, sizes=sizes), run.seed


def _places(task: Task, seed: int, problem_ids: list[str], count: int) -> list[int]:
    """Indices in the train split of the problems with these ids."""
    indices: dict[str, int] = {}
    for i in range(count):
        if len(indices) == len(problem_ids):
            break
        id_ = task.problem("train", seed, i).id
        if id_ in problem_ids:
            indices.setdefault(id_, i)
    missing = [id_ for id_ in problem_ids if id_ not in indices]
    if missing:
        raise ValueError(
            f"problems {missing[:3]} of the history are not among the first {count} of the train "
            "split; has its file changed?"
        )
    return [indices[id_] for id_ in problem_ids]
