"""`jaxrl effects NAME --real`: a method on SmolLM2-135M, against GRPO from the same seeds.

The runs are those of the recipe `smollm2` (60 steps), with the fields that make up the method taken
from the method's own recipe. GRPO is run once for all methods. Results are files `METHOD.SEED.json`
of a directory, so that a measurement which was stopped continues where it was.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from jaxrl.config import Config
from jaxrl.launch import effects_table, recipes
from jaxrl.launch.lab import plans, statistics
from jaxrl.run import loop

BASELINE = "grpo"
BASELINE_SEEDS = 5
STATISTIC = "pass@1"
METHOD = ("objective", "curriculum", "updates_per_batch", "extensions")
"""Fields of a config that a method consists of. Its tasks, domains, stages, lengths and rates are
those of its own scale."""
Run = Callable[[Config], float]


def chosen() -> list[str]:
    """The methods that were chosen before any was measured on the real model."""
    return [
        name for name in effects_table.names() if effects_table.module(name).effect().on_real_model
    ]


def config_of(name: str, seed: int) -> Config:
    """The run of a method on the real model.

    Args:
      name: a recipe, or `BASELINE`.
      seed: of the run.

    Raises:
      ValueError: the method is one of domains, stages or chunks, which that task has not.
    """
    base = dataclasses.replace(recipes.load("smollm2"), seed=seed, recipe=name)
    if name == BASELINE:
        return base
    own = recipes.load(name)
    elsewhere = [f for f in ("domains", "stages") if getattr(own, f)]
    if elsewhere or own.rollout.chunks.size or own.task not in ("arithmetic", base.task):
        raise ValueError(
            f"{name} is measured on the real model by its {', '.join(elsewhere) or 'task'}, which "
            f"{base.task} has not; choose a method of the objective, of data or of extensions"
        )
    rollout = dataclasses.replace(base.rollout, oversampling=own.rollout.oversampling)
    fields = {name: getattr(own, name) for name in METHOD}
    return dataclasses.replace(base, rollout=rollout, **fields)


def trained(config: Config) -> float:
    """Held-out greedy accuracy after a run of a config."""
    with tempfile.TemporaryDirectory() as folder:
        summary = loop.train(dataclasses.replace(config, run_dir=folder))
    return float(summary["eval"]["after"][STATISTIC])


def measure(
    methods: Sequence[str],
    directory: Path,
    seeds: int,
    said: Callable[[str], None],
    run: Run = trained,
) -> None:
    """Run methods and baseline, each seed once, and print the results."""
    for name in methods:
        config_of(name, 0)  # all that cannot be measured are refused before the first run
    wanted = [(BASELINE, seed) for seed in range(BASELINE_SEEDS)]
    wanted += [(name, seed) for name in methods for seed in range(seeds)]
    for name, seed in wanted:
        path = directory / f"{name}.{seed}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        value = run(config_of(name, seed))
        minutes = round((time.perf_counter() - began) / 60, 1)
        plans.write(path, {"method": name, "seed": seed, STATISTIC: value, "minutes": minutes})
        said(f"{name}, seed {seed}: {value:.3f} ({minutes} min)")
    for name in methods:
        row = compared(directory, name)
        said(f"{name}: {row['effect']:+.3f} {row['interval']} against GRPO, {row['seeds']} seeds")


def compared(directory: Path, name: str) -> dict[str, Any]:
    """A method against the baseline: Welch's interval, seeds being independent runs."""
    mine, other = (_values(directory, n) for n in (name, BASELINE))
    mean, low, high = statistics.unpaired(mine, other)
    interval = [round(low, 4), round(high, 4)]
    return {"id": name, "effect": round(mean, 4), "interval": interval, "seeds": len(mine)}


def agreement(directory: Path, lab: dict[str, float]) -> str:
    """How well effects in the lab, method -> effect, predict those on the real model; one line."""
    known = {path.name.partition(".")[0] for path in directory.glob("*.json")} - {BASELINE}
    real = {name: compared(directory, name)["effect"] for name in sorted(known)}
    try:
        rho, low, high = rank_correlation(lab, real)
    except ValueError as error:
        return f"rank correlation of lab and real model: {error}"
    return f"rank correlation of lab and real model: {rho:.2f} [{low:.2f}, {high:.2f}]"


def rank_correlation(lab: dict[str, float], real: dict[str, float]) -> tuple[float, float, float]:
    """Spearman's correlation of effects in the lab and on the real model, with its 95% interval.

    The interval is that of Fisher's transform with the error of Bonett & Wright (2000); it needs
    four methods.
    """
    both = sorted({*lab} & {*real})
    if len(both) < 4:
        raise ValueError(f"{len(both)} methods were measured at both scales: 4 or more are needed")
    rho = float(stats.spearmanr([lab[n] for n in both], [real[n] for n in both]).statistic)
    error = np.sqrt((1 + rho**2 / 2) / (len(both) - 3))
    edges = np.tanh(np.arctanh(np.clip(rho, -0.9999, 0.9999)) + np.array([-1.96, 1.96]) * error)
    return rho, float(edges[0]), float(edges[1])


def _values(directory: Path, name: str) -> np.ndarray:
    rows = [json.loads(path.read_text()) for path in sorted(directory.glob(f"{name}.*.json"))]
    return np.array([row[STATISTIC] for row in rows])
