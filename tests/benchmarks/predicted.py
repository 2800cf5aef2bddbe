"""What the simulator predicts from a synchronous run's log, against runs of other schedules.

`python -m tests.benchmarks.predicted DIR` trains a small policy on answers with a long tail of
lengths: in turns, with partial rollouts, and in lockstep, in rounds (`tests.benchmarks.rounds`).
Costs and lengths are read from the log of the run in turns; mean seconds a step of all three are
predicted from that alone, and compared.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from jaxrl import config as configs
from jaxrl.launch.planning import asynchronous, costs, simulate
from jaxrl.rollout.schedule import Limits
from tests.benchmarks import rounds

BASE = {
    "task": "tests.benchmarks.sleeping:scored", "task_args": {}, "warm_start.steps": 0,
    "eval.problems": 2, "score_workers": 0,
    "fresh.hidden_size": 128, "fresh.intermediate_size": 256, "fresh.head_dim": 32,
    "rollout.prompts": 8, "rollout.group_size": 4, "rollout.max_new_tokens": 256,
    "sampler.slots": 64, "sampler.chunk": 16, "sampler.bucket": 288, "sampler.prefill_piece": 288,
    "packing.row_length": 320, "packing.micro_batch_tokens": 1280, "packing.bucket": 320,
    "checkpoint.every": 999, "rollout_log.every": 1, "rollout_log.groups": 8,
    "optimizer.learning_rate": 1e-5,
}  # fmt: skip
RUNS = {
    "in turns": {},
    "partial rollouts, 1.5": {"rollout.in_flight": 1.5},
    "lockstep:4, staleness 1": {
        "asynchronous.staleness": 1,
        "asynchronous.schedule": "lockstep:4",
    },
}


def measured(directory: Path, first: int) -> float:
    """Mean seconds a step after the first ones, but for checkpoints and evaluations, and for steps
    in which something is compiled."""
    rows = [row for row in costs.compiled_steps(directory) if row["step"] > first]
    spent = [r["time/step"] - r.get("time/save", 0.0) - r.get("time/eval", 0.0) for r in rows]
    return float(np.mean(spent))


def predicted(run: Path, name: str, steps: int, first: int) -> float:
    """Mean seconds a step of a schedule, simulated by the log of the run in turns alone."""
    config = configs.load(run / "config.json")
    work, cost = asynchronous.workload(config, run), costs.costs_of(run)
    prompts = config.rollout.prompts
    limits, lockstep = {
        "in turns": (Limits(prompts, 0, steps=steps), 0),
        "partial rollouts, 1.5": (
            Limits(prompts, None, round(1.5 * prompts), "finished", steps=steps),
            0,
        ),
        "lockstep:4, staleness 1": (Limits(prompts, 1, steps=steps), 4),
    }[name]
    out = simulate.simulate(limits, cost, work, overlap=False, lockstep=lockstep)
    ends = [span.end for span in out.spans if span.who == "train"]
    return (ends[-1] - ends[first - 1]) / (steps - first)


def main() -> None:
    """Run, and print predicted and measured seconds a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--first", type=int, default=5, help="steps that are not counted")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if not given.directory.exists():
        runs = {name: BASE | changes | {"steps": given.steps} for name, changes in RUNS.items()}
        rounds.run(given.directory, runs, given.rounds)
    for name in RUNS:
        real = measured(given.directory / name, given.first)
        told = predicted(given.directory / "in turns", name, given.steps, given.first)
        row = {"run": name, "measured": real, "predicted": told, "error": told / real - 1}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
