"""Twenty arms of the lab on the quickstart, see PLAN.md in this folder.

PYTHONPATH=. python experiments/runs/middle/experiment.py WORK

Does the runs that `results.jsonl` lacks, at low priority; it can be stopped at any time. With
`--list` it prints what is left, and runs nothing. With `--part 0/2` and `--part 1/2` two processes
share the arms out.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.effects import table
from experiments.lab import plans
from experiments.lab.arms import Arm
from jaxrl.config import AsynchronousConfig, Config, replaced
from jaxrl.launch import recipes
from jaxrl.launch.publish import export
from jaxrl.run import loop

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.jsonl"
TASK = "neutral"
"""The task of the lab whose arms and effects these are."""
RATES = (2e-4, 4e-4, 8e-4)
DEVELOPMENT, SEEDS = (100,), tuple(range(6))
PROBLEMS = 1024
STALENESS, UPDATES = 4, 4
"""Steps that data may be old, and updates on each batch, where the lab's data are old at all."""


class Source(NamedTuple):
    """Where an arm comes from, and what it is compared with."""

    plan: str
    """Recipe whose plan has it."""
    label: str
    """In that plan."""
    against: str
    """The arm here that it is compared with; empty for a baseline of a regime."""
    reference: str = ""
    """Label of that arm in the same plan, for the effect in the lab."""


ARMS = {
    "GRPO": Source("tp_grpo", "baseline: GRPO", ""),
    "Dr. GRPO": Source("tp_grpo", "baseline: Dr. GRPO", "GRPO", "baseline: GRPO"),
    "CISPO": Source("tp_grpo", "baseline: CISPO", "GRPO", "baseline: GRPO"),
    "DAPO": Source("tp_grpo", "baseline: DAPO", "GRPO", "baseline: GRPO"),
    "dynamic sampling": Source(
        "gain_rl", "baseline: dynamic sampling", "GRPO", "baseline: uniform"
    ),
    "order by angles": Source("gain_rl", "method", "GRPO", "baseline: uniform"),
    "online DPO": Source("oorl_gepo", "baseline: online DPO", "GRPO", "baseline: GRPO"),
    "rejection sampling": Source(
        "oorl_gepo", "baseline: rejection sampling", "GRPO", "baseline: GRPO"
    ),
    "PPO": Source("hl_gauss_value_classification", "baseline: PPO", "GRPO", "baseline: GRPO"),
    "ViSurf": Source("visurf", "method", "GRPO", "ablation: all"),
    "SFT": Source("chord", "baseline: SFT", "GRPO", "ablation: policy loss"),
    "SFT + GRPO": Source("chord", "baseline: SFT + GRPO", "GRPO", "ablation: policy loss"),
    "LUFFY": Source("chord", "baseline: LUFFY", "GRPO", "ablation: policy loss"),
    "stale, no correction": Source(
        "rec_red_off_policy_group_reinforce", "ablation: policy loss", ""
    ),
    "REC": Source(
        "rec_red_off_policy_group_reinforce", "method", "stale, no correction",
        "ablation: policy loss",
    ),
    "truncated importance sampling": Source(
        "rec_red_off_policy_group_reinforce", "baseline: truncated importance sampling",
        "stale, no correction", "ablation: policy loss",
    ),
    "decoupled PPO": Source(
        "rec_red_off_policy_group_reinforce", "baseline: decoupled PPO", "stale, no correction",
        "ablation: policy loss",
    ),
    "importance sampling": Source(
        "vcpo", "ablation: policy loss", "truncated importance sampling",
        "baseline: truncated importance sampling",
    ),
    "VCPO": Source(
        "vcpo", "method", "truncated importance sampling",
        "baseline: truncated importance sampling",
    ),
    "A-LoL": Source(
        "a_lol", "method", "truncated importance sampling",
        "baseline: truncated importance sampling",
    ),
}  # fmt: skip
"""Name -> where the arm comes from: chosen by the spread of their effects in the lab."""


def lab_arm(name: str) -> Arm:
    """The lab's arm of a name, at its own clip."""
    source = ARMS[name]
    effect = table.effect_of(source.plan)
    plan = json.loads((table.RESULTS / f"{source.plan}.plan.json").read_text())
    return plans.arms_of(effect, plan["family"], TASK, plan["tasks"][TASK])[source.label]


def lab_effect(name: str) -> float | None:
    """The effect of an arm in the lab, by the means of its plan; None for a baseline."""
    source = ARMS[name]
    if not source.against:
        return None
    plan = json.loads((table.RESULTS / f"{source.plan}.plan.json").read_text())
    arms = plan["tasks"][TASK]["arms"]
    return round(arms[source.label]["score"] - arms[source.reference]["score"], 5)


def warm_start(work: Path, seed: int) -> str:
    """The quickstart's model after its warm start, the same for all arms of a seed, as a folder."""
    folder, run = work / f"start-{seed}", work / f"start-{seed}-run"
    if not folder.exists():
        config = dataclasses.replace(recipes.load("quickstart"), seed=seed, steps=1)
        loop.train(dataclasses.replace(config, run_dir=str(run)))
        export.export(str(run), export.ExportConfig(to="hf", out=str(folder), step=0))
    return str(folder)


def config_of(name: str, rate: float, seed: int, model: str = "fresh") -> Config:
    """The run of an arm: the quickstart with what the lab's arm trains, and as stale.

    Args:
      name: of `ARMS`.
      rate: the learning rate.
      seed: of all streams.
      model: as `warm_start` gives it; `fresh`: it is trained first.
    """
    base, arm = recipes.load("quickstart"), lab_arm(name)
    extensions = {n: getattr(arm, n) for n in ("guidance", "critic") if getattr(arm, n) is not None}
    stale = bool(arm.delay or arm.sync_every > 1)
    config = dataclasses.replace(
        base,
        objective=arm.objective,
        curriculum=arm.curriculum,
        updates_per_batch=arm.updates_per_batch,
        extensions=extensions,
        seed=seed,
    )
    if stale:
        old = AsynchronousConfig(staleness=STALENESS, schedule="lockstep:4")
        config = dataclasses.replace(config, asynchronous=old, updates_per_batch=UPDATES)
    if model != "fresh":
        config = replaced(replaced(config, "model", model), "warm_start.steps", 0)
    config = replaced(config, "rollout.oversampling", arm.oversampling)
    config = replaced(config, "eval.problems", PROBLEMS)
    return replaced(config, "optimizer.learning_rate", rate)


def done() -> dict[tuple[str, float, int], dict[str, Any]]:
    """The runs that are recorded, by arm, rate and seed."""
    if not RESULTS.exists():
        return {}
    rows = map(json.loads, RESULTS.read_text().splitlines())
    return {(row["arm"], row["rate"], row["seed"]): row for row in rows}


def best_rate(name: str, known: dict[tuple[str, float, int], dict[str, Any]]) -> float:
    """Of the development runs, by the mean pass rate; ties by the order of `RATES`."""
    means = [np.mean([known[name, rate, s]["after"] for s in DEVELOPMENT]) for rate in RATES]
    return RATES[int(np.argmax(means))]


def left(names: Sequence[str] = tuple(ARMS)) -> Iterator[tuple[str, float, int]]:
    """The runs of arms to be done, in order; those of an arm's seeds once its rate is known."""
    for name in names:
        for rate, seed in itertools.product(RATES, DEVELOPMENT):
            if (name, rate, seed) not in done():
                yield name, rate, seed
    for name in names:
        known = done()
        if all((name, r, s) in known for r, s in itertools.product(RATES, DEVELOPMENT)):
            rate = best_rate(name, known)
            yield from ((name, rate, s) for s in SEEDS if (name, rate, s) not in known)


def measure(work: Path, name: str, rate: float, seed: int) -> dict[str, Any]:
    """Do a run, or go on with it from its checkpoint in `work`."""
    run = work / f"{name}-{rate:g}-{seed}".replace(" ", "_").replace(",", "")
    config = config_of(name, rate, seed, warm_start(work, seed))
    summary = loop.train(dataclasses.replace(config, run_dir=str(run)))
    before, after = (summary["eval"][when]["pass@1"] for when in ("before", "after"))
    return {
        "arm": name, "rate": rate, "seed": seed, "before": before, "after": after,
        "tokens": summary["tokens"], "git": summary["git"], "host": summary["host"],
    }  # fmt: skip


def main() -> None:
    """Do what is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--list", action="store_true", help="print what is left, and run nothing")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th arm, from the I-th on")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    names = tuple(ARMS)[part::parts]
    if arguments.list:
        for name, rate, seed in left(names):
            print(f"{name}, rate {rate:g}, seed {seed}; lab {lab_effect(name)}")
        return
    os.nice(max(0, 19 - os.nice(0)))
    for name, rate, seed in left(names):
        row = measure(arguments.work, name, rate, seed)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{name}, rate {rate:g}, seed {seed}: {row['before']:.3f} to {row['after']:.3f}")


if __name__ == "__main__":
    main()
