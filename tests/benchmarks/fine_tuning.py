"""Seconds of a step of fine-tuning: SFT and DPO of SmolLM2-135M, ours, TRL's and Tunix's.

    python -m tests.benchmarks.fine_tuning measure --recipes sft dpo --systems jaxrl trl tunix
    python -m tests.benchmarks.fine_tuning table

One process after another, in the environment of `tests.benchmarks.step`. The file holds the rows of
one step, so that every step of all systems has the same rows whatever order they take them in, and
their losses can be compared. TRL runs as its documentation has it, in fp32, with and without its
default gradient checkpointing. Tunix takes batches that its user has padded: here to the longest
row. What is measured lies between the ends of two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import step

RECIPES = {"sft": 8, "dpo": 4}
"""Rows of a step, of which DPO's are pairs."""
LONGEST = 120
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "jaxrl": ("ours_fine_tuning", {}),
    "trl": ("trl_fine_tuning", {}),
    "trl-no-checkpointing": ("trl_fine_tuning", {"gradient_checkpointing": False}),
    "tunix": ("tunix_fine_tuning", {}),
}
"""A script of `peers`, and options that it is given."""


def text(rng: np.random.Generator, count: int) -> str:
    """So many words, each a token or two."""
    return " ".join(rng.choice(step.TEXT.split(), count))


def rows(recipe: str, path: Path) -> None:
    """Write a step's rows: prompts of 12 words; answers of lognormal lengths, one the longest."""
    rng = np.random.default_rng(0)
    count = RECIPES[recipe]
    sizes = step.long_tail(2 * count, 36 * 2 * count, LONGEST)
    made = []
    for n in range(count):
        prompt = text(rng, 12)
        answers = [f" {text(rng, sizes[2 * n + side])}" for side in range(2)]
        pair = {"chosen": answers[0], "rejected": answers[1]}
        own = {"completion": answers[0]} if recipe == "sft" else pair
        made.append({"prompt": prompt, **own})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in made))


def measure(arguments: argparse.Namespace) -> None:
    """Run systems on recipes, one after another."""
    work, here = arguments.work, Path(__file__).resolve()
    given = dict(pair.split("=", 1) for pair in arguments.python)
    step.export("smollm2-135m", work / "model")
    for recipe in arguments.recipes:
        data = work / f"{recipe}.jsonl"
        rows(recipe, data)
        for system in arguments.systems:
            script, options = SYSTEMS[system]
            stem = f"{recipe}-{system}"
            scratch = work / f"run-{stem}-{time.time_ns()}"
            job = {
                "row": recipe,
                "recipe": recipe,
                "system": system,
                "model": str(work / "model"),
                "data": str(data),
                "rows": RECIPES[recipe],
                "row_length": arguments.row_length,
                "learning_rate": 1e-6,
                "steps": arguments.steps + 1,
                "threads": len(os.sched_getaffinity(0)),
                "options": options,
                "flags": arguments.flags,
                "run_dir": str(scratch / "run"),
                "out": str(work / f"{stem}.json"),
                "started": time.time(),
            }
            scratch.mkdir()
            (scratch / "job.json").write_text(json.dumps(job))
            entry = [str(here.parent / f"peers/{script}.py")]
            if script.startswith("ours"):
                entry = ["-m", f"tests.benchmarks.peers.{script}"]
            environment = os.environ | {
                "OMP_NUM_THREADS": str(job["threads"]),
                "JAX_COMPILATION_CACHE_DIR": arguments.cache or str(scratch / "cache"),
                "JAX_PLATFORMS": "cpu",
            }
            Path(job["out"]).unlink(missing_ok=True)
            python = step.python_of(system.split("-")[0], given, work)
            with (work / f"{stem}.log").open("w") as log, suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [python, *entry, str(scratch / "job.json")],
                    cwd=here.parents[2],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=arguments.limit,
                )
            subprocess.run(["rm", "-rf", str(scratch)], check=True)
            if not Path(job["out"]).exists():
                print(f"{stem} failed:\n{(work / f'{stem}.log').read_text()[-1500:]}", flush=True)
    table(arguments)


def table(arguments: argparse.Namespace) -> None:
    """Print all results, and how many times as long each peer takes."""
    ours: dict[str, float] = {}
    print(
        "| Recipe | System | Step, s | Times ours | First loss | First step, s | Peak, GB "
        "| Matmul, GFLOP/s | Steps |\n" + "|---" * 9 + "|"
    )
    for recipe in RECIPES:
        for system in SYSTEMS:
            path = arguments.work / f"{recipe}-{system}.json"
            if not path.exists():
                continue
            found = json.loads(path.read_text())
            later = [each["step"] for each in found["steps"][1:]]
            seconds = statistics.median(later)
            ours.setdefault(recipe, seconds)
            print(
                f"| {recipe} | {system} | {seconds:.2f} | {seconds / ours[recipe]:.2f} "
                f"| {found['steps'][0]['loss']:.4f} | {found['first_step']:.0f} "
                f"| {found['peak_gb']:.2f} | {found['matmul'] / 1e9:.0f} | {len(later)} |"
            )


def main() -> None:
    """Measure or print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=["measure", "table"])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--steps", type=int, default=3, help="after the first, which compiles")
    parser.add_argument("--row-length", type=int, default=384, help="of our packed rows")
    parser.add_argument("--flags", nargs="*", default=[], help="more flags of our runs")
    parser.add_argument("--python", nargs="*", default=[], help="SYSTEM=PATH of an interpreter")
    parser.add_argument("--work", type=Path, default=Path("runs/fine-tuning-benchmark"))
    parser.add_argument("--cache", default="", help="a compilation cache to use; empty: a cold one")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds a run may take")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    {"measure": measure, "table": table}[arguments.do](arguments)


if __name__ == "__main__":
    main()
