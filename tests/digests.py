"""What every recipe computes in two steps, to be compared with what it computed before.

    python -m tests.digests write FILE [RECIPE ...]
    python -m tests.digests check FILE [RECIPE ...]

`write` adds the recipes, or all of them, to a JSON file: their metrics, a SHA-256 of their final
parameters, and the platform, processor and version of JAX. `check` runs those of the file again.
Where these are the same, every figure must be equal; elsewhere, metrics to 1e-3. Programs are
compiled without most optimisations, whatever the environment says: compiling takes most of the
time.

A model this small hardly ever solves a problem, and without a reward nothing is learned. So half of
the wrong completions, chosen by their text, count as right.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import jax

from jaxrl.config import Config, extended
from jaxrl.data import tasks
from jaxrl.data.types import Problem, Score, Task
from jaxrl.launch import algorithms, recipes
from jaxrl.record import checkpoint, metrics
from jaxrl.run import loop
from jaxrl.training.tries import Chunks
from tests import COMPILED
from tests.jaxrl.tiny import arrays
from tests.launch.test_recipes import ASKED, EPISODES, PROGRAMS, tiny

CPU = Path(__file__).with_name("digests") / "cpu.json"
COIN = "tests.digests:coin"
TEACHERS = {"distill": "sft", "distill_on_policy": "quickstart"}
"""Recipes that need a teacher, and the recipe whose run is one with the same tokenizer."""
FOUND = {"credit": 0.5}
"""Parameters of domains of several turns: a model this small finds facts, and answers nothing."""
TOLERANCE = 1e-3
"""Of a metric elsewhere: absolute, and relative to what was recorded."""

_UNSTEADY = ("time/", "memory/", "compilations", "idle/")
_CLEAR = 8
"""Recipes whose programs a process holds at a time."""


def compile_once() -> None:
    """Each program is compiled once, with the options of the tests and into their cache."""
    os.environ.pop("XLA_FLAGS", None)  # before the first program
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", COMPILED)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def environment() -> dict[str, str]:
    """What the last bit of a figure depends on, beside the code."""
    return {
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "processor": _processor(),
        "jax": jax.__version__,
        "options": "unoptimised",
    }


def coin(of: str = "arithmetic", **params: Any) -> Task:
    """A task of one turn, where half of the wrong completions count as right."""
    made = tasks.get(of, **params)

    def reward(problem: Problem, completion: str) -> Score:
        score = made.reward(problem, completion)
        lucky = zlib.crc32(f"{problem.prompt}{completion}".encode()) % 2
        return dataclasses.replace(score, value=max(score.value, float(lucky)))

    return dataclasses.replace(made, reward=reward)


def config(name: str, run_dir: Path) -> Config:
    """The run of a recipe."""
    made = tiny(recipes.load(name), run_dir)
    rollout = made.rollout
    if rollout.chunks.size:  # or no response would be longer than one
        rollout = dataclasses.replace(rollout, chunks=Chunks(3, 1))
    kept = made.task in EPISODES or name in ASKED
    task = made.task if kept else COIN  # which rewards parts of a solution
    change = (lambda own: {"args": own.args | FOUND}) if kept else (lambda own: {"task": COIN})
    domains = {k: dataclasses.replace(v, **change(v)) for k, v in made.domains.items()}
    args = made.task_args | ({"of": made.task} if made.task in PROGRAMS else {})
    return dataclasses.replace(made, task=task, task_args=args, domains=domains, rollout=rollout)


def digest(name: str) -> dict[str, Any]:
    """Metrics of two steps of a recipe, a list of rows, a SHA-256 of its final parameters, and
    where they were computed."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        made = config(name, run_dir)
        if name in TEACHERS:
            teacher = Path(folder) / "teacher/run"
            loop.train(tiny(recipes.load(TEACHERS[name]), teacher))
            made = extended(made, "teacher", model=str(teacher))
        loop.train(made)
        rows = [
            {k: v for k, v in sorted(row.items()) if not k.startswith(_UNSTEADY)}
            for row in metrics.read(run_dir)
        ]
        saved = arrays(checkpoint.path(run_dir, checkpoint.steps(run_dir)[-1]))
    sha = hashlib.sha256()
    for key, value in sorted(saved.items()):
        if key.startswith("['params']"):
            sha.update(key.encode() + value)
    return {"environment": environment(), "metrics": rows, "params": sha.hexdigest()}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """How two digests of a recipe differ, in words; empty where they agree.

    To the last bit where both were computed in the same environment, else metrics to `TOLERANCE`.
    """
    exact, out = before["environment"] == now["environment"], []
    if exact and before["params"] != now["params"]:
        out.append("the final parameters differ")
    if len(before["metrics"]) != len(now["metrics"]):
        out.append(f"{len(before['metrics'])} steps before, {len(now['metrics'])} now")
    for old, new in zip(before["metrics"], now["metrics"], strict=False):
        for key in sorted(old.keys() | new.keys()):
            a, b = old.get(key), new.get(key)
            if not _equal(a, b, exact):
                out.append(f"step {old.get('step')}: {key} was {a}, is {b}")
    return out


def _equal(a: Any, b: Any, exact: bool) -> bool:
    if not (isinstance(a, float | int) and isinstance(b, float | int)):
        return a == b
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b if exact else math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def write(path: Path, names: list[str]) -> None:
    """Record the recipes; the file is written after each, and the others in it are kept."""
    known = json.loads(path.read_text()) if path.exists() else {}
    for i, name in enumerate(names):
        known[name] = digest(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(known))
        print(f"{name} {known[name]['params'][:12]}", flush=True)
        _forget(i)


def check(path: Path, names: list[str]) -> list[str]:
    """How the recipes differ from what is recorded, a line for each difference.

    Raises:
      ValueError: a recipe that is not recorded.
    """
    known, out = json.loads(path.read_text()), []
    for i, name in enumerate(names or sorted(known)):
        if name not in known:
            raise ValueError(f"{path} has no recipe {name!r}; record it with `write`")
        found = differences(known[name], digest(name))
        exact = known[name]["environment"] == environment()
        how = "to the last bit" if exact else f"to {TOLERANCE}"
        where = known[name]["environment"]["processor"]
        print(
            f"{name} {'differs' if found else 'is equal'} {how} (recorded on {where})", flush=True
        )
        out += [f"{name}: {line}" for line in found]
        _forget(i)
    return out


def main(arguments: list[str]) -> int:
    """`write FILE [RECIPE ...]` or `check FILE [RECIPE ...]`; 1 where something differs."""
    if len(arguments) < 2 or arguments[0] not in ("write", "check"):
        print(__doc__, file=sys.stderr)
        return 2
    action, file, *names = arguments
    compile_once()
    if action == "write":
        write(Path(file), names or [*recipes.names(), *algorithms.names()])
        return 0
    found = check(Path(file), names)
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


def _forget(done: int) -> None:
    if done % _CLEAR == _CLEAR - 1:
        jax.clear_caches()


def _processor() -> str:
    """XLA compiles for the instructions that there are, which the model of a processor tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _text(known: dict[str, Any]) -> str:
    """JSON with a line for each recipe, in the order of their names."""
    rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(known.items()))
    return f"{{\n{rows}\n}}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
