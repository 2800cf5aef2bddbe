"""Five algorithms in one table at equal samples, see PLAN.md in this folder.

PYTHONPATH=. python experiments/runs/survey/experiment.py WORK experiments/runs/survey/results.json

WORK keeps each arm that was run; a stopped measurement continues where it was.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lab import Arm, Effect, arms, families, statistics, stores, tuning
from experiments.lab.tasks import neutral

SURVEYED = {
    "GRPO": ("objectives", "GRPO"),
    "PPO": ("critics", "PPO"),
    "RLOO": ("agents", "leave-one-out REINFORCE"),
    "online DPO": ("preferences", "online DPO"),
    "RAFT": ("preferences", "rejection sampling"),
}
"""Arm -> family and baseline. The others are compared with the first."""
SEEDS = range(24)
MINIMUM = 0.03


def measure(work: Path) -> dict[str, dict[str, Any]]:
    """Tune each arm, then measure it: its rate, pass@1 and area [seed], and tokens."""
    task = neutral()
    store = stores.Store(work, said=lambda line: print(line, flush=True))
    found = {}
    for name, (family, baseline) in SURVEYED.items():
        arm = families.baselines(family, Arm(steps=80))[baseline]
        effect = Effect("", task, arm, arm)
        rate = tuning.tune(store, effect, arm)["learning_rate"]
        figures = store.figures(effect, arms.tuned(arm, rate, 1.0), SEEDS)
        found[name] = {
            "learning_rate": rate,
            "before": figures["before"]["pass@1"],
            "final": figures["final"]["pass@1"],
            "area": figures["area"]["pass@1"],
            "tokens": float(np.mean(figures["final"]["tokens"])),
        }
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """The tables of README.md."""
    first, *others = found
    lines = ["| arm | rate | tokens | before | pass@1 | area |", "|---" * 6 + "|"]
    for name, own in found.items():
        means = " | ".join(f"{np.mean(own[k]):.3f}" for k in ("before", "final", "area"))
        lines.append(f"| {name} | {own['learning_rate']:g} | {own['tokens']:,.0f} | {means} |")
    lines += ["", f"| less {first} | pass@1 | p | status | area |", "|---" * 5 + "|"]
    ends, areas = (
        [np.subtract(found[name][k], found[first][k]) for name in others] for k in ("final", "area")
    )
    compared = [statistics.paired(each, minimum=MINIMUM) for each in ends]
    corrected = statistics.holm([c.p for c in compared])
    for name, end, area, c, p in zip(others, ends, areas, compared, corrected, strict=True):
        status = statistics.status(c, p, better="higher")
        shown = f"{statistics.interval(end)} | {p:.4f} | {status} | {statistics.interval(area)}"
        lines.append(f"| {name} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Measure if there are no results yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    if not given.results.exists():
        given.results.write_text(json.dumps(measure(given.work), indent=1))
    print(table(json.loads(given.results.read_text())))


if __name__ == "__main__":
    main()
