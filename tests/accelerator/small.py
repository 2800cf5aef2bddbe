"""The quickstart by its command, and control's vectorised training."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.control import algorithms as control
from jaxrl.control import environments, train
from jaxrl.record import metrics
from tests.accelerator.settings import Report, Settings, remaining

CONTROL = {"ppo": ("pendulum", 102_400, 2048), "dqn": ("cartpole", 20_000, 500)}
"""Algorithms to environment, steps, and steps of a rehearsal."""
_SHORT = "the limit of this part is near"
SEEDS = 1, 16, 128


def measure(settings: Settings, report: Report) -> None:
    """Control first, which is short; then the quickstart for what is left."""
    for name, (env, steps, few) in CONTROL.items():
        for seeds in settings.sized(SEEDS, (2,)):
            if why := settings.sized(_SHORT * (remaining() < 45), "rehearsal" * (name != "ppo")):
                report.skip(f"control {name}, {seeds} seeds", why)
                continue
            with report.attempt(f"control {name}, {seeds} seeds"):
                found = vectorised(name, env, settings.sized(steps, few), seeds)
                report.add(f"control {name}, {seeds} seeds", found)
    with report.attempt("quickstart"):
        report.add("quickstart", quickstart(settings))


def vectorised(name: str, env_name: str, steps: int, seeds: int) -> dict[str, Any]:
    """All seeds in one program, twice: the first compiles."""
    module, env = control.load(name), environments.get(env_name)
    config = dataclasses.replace(module.config(), steps=steps)
    times, returns = [], np.zeros(0)
    for _ in range(2):
        start = time.perf_counter()
        *_, point = train.train(module.programs(env, config), env, seeds=range(seeds), points=1)
        returns = np.asarray(jax.device_get(point.returns))
        times.append(time.perf_counter() - start)
    return {
        "first_seconds": times[0],
        "seconds": times[1],
        "env_steps_a_second": steps * seeds / times[1],
        "return_mean": float(returns.mean()),
    }


def quickstart(settings: Settings) -> dict[str, Any]:
    """`jaxrl train quickstart`, as far as it comes."""
    run = settings.work / "runs" / f"quickstart-{time.time_ns()}"
    command = [sys.executable, "-m", "jaxrl.launch.cli", "train", "quickstart"]
    command += ["--run-dir", str(run)]
    if settings.rehearse:
        command += ["--steps", "3", "--warm-start.steps", "3", "--eval.problems", "8"]
    start, ended = time.perf_counter(), True
    try:
        subprocess.run(command, timeout=max(5.0, remaining() - 6), check=True)
    except subprocess.TimeoutExpired:
        ended = False
    return {"seconds": time.perf_counter() - start, "ended": ended} | of_run(run)


def of_run(run: Path) -> dict[str, Any]:
    """What the files of a run say of its steps and evaluations."""
    rows = metrics.read(run) if (run / "metrics.jsonl").exists() else []
    found: dict[str, Any] = {"steps": len(rows)}
    for phase in ("step", "sample", "train", "sync"):
        if later := [row[f"time/{phase}"] for row in rows[5:] if f"time/{phase}" in row]:
            found[f"{phase}_seconds"] = statistics.median(later)
    summary = run / "summary.json"
    if summary.exists():
        found["eval"] = json.loads(summary.read_text())["eval"]
    return found
