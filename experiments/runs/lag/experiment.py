"""Learning curves by the age of the data, see PLAN.md in this folder.

PYTHONPATH=. python experiments/runs/lag/experiment.py RESULTS.json --seeds 0 1 2 3 4 5
"""

import argparse
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.lab import Arm, Effect, cipher, statistics
from experiments.lab.effect import run_arm
from jaxrl.training.objective import ObjectiveConfig

LAGS = (0, 1, 4, 16)
RATES = (1e-3, 3e-3)
ARMS = {"none": "ppo_clip", "decoupled": "decoupled_ppo", "icepop": "icepop", "aipo": "aipo"}
Found = dict[str, dict[str, Any]]
"""By learning rate, arm and lag, joined by slashes."""


def arm(name: str, lag: int, rate: float) -> Arm:
    """An arm at an age of the data, in steps."""
    objective = ObjectiveConfig(policy=ARMS[name])
    return Arm(objective, steps=80, delay=lag, updates_per_batch=4, learning_rate=rate)


def arms() -> dict[str, Arm]:
    """All arms, lags and rates, by their keys in the results."""
    every = itertools.product(RATES, LAGS, ARMS)
    return {f"{rate:g}/{name}/{lag}": arm(name, lag, rate) for rate, lag, name in every}


def measure(path: Path, seeds: list[int], wanted: dict[str, Arm]) -> Found:
    """Figures of arms, continued from what the file has."""
    plain = Arm(steps=80)
    effect = Effect("", cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)), plain, plain)
    found: Found = json.loads(path.read_text()) if path.exists() else {}
    for key, each in wanted.items():
        if key in found:
            continue
        figures = run_arm(effect, each, seeds)
        found[key] = {
            "before": figures["before"]["pass@1"],
            "marks": figures["marks"],
            "curve": figures["curves"]["pass@1"],
            "minutes": figures["minutes"],
        }
        path.write_text(json.dumps(found, indent=1))
        means = np.mean(found[key]["curve"], axis=1).round(3)
        print(key, means, figures["minutes"], flush=True)
    return found


def table(title: str, columns: Iterable[object], rows: dict[str, list[str]]) -> str:
    """In Markdown."""
    names = [title, *map(str, columns)]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    return "\n".join([*lines, *(f"| {k} | " + " | ".join(v) + " |" for k, v in rows.items())])


def report(found: Found, rate: float) -> str:
    """The tables of README.md for a learning rate."""
    curves = {
        (name, lag): np.array(found[f"{rate:g}/{name}/{lag}"]["curve"])
        for name in ARMS
        for lag in LAGS
    }
    ends = {key: curve[-1] for key, curve in curves.items()}
    lags = [f"lag {lag}" for lag in LAGS]
    means = {f"`{n}`": [f"{ends[n, lag].mean():.3f}" for lag in LAGS] for n in ARMS}
    aged = {
        f"`{n}`": [statistics.interval(ends[n, lag] - ends[n, 0]) for lag in LAGS[1:]] for n in ARMS
    }
    gains = {
        f"`{n}`": [statistics.interval(ends[n, lag] - ends["none", lag]) for lag in LAGS]
        for n in list(ARMS)[1:]
    }
    shown = {
        f"`{n}`, lag {lag}": [f"{x:.3f}" for x in curves[n, lag].mean(axis=1)] for n, lag in curves
    }
    marks = found[f"{rate:g}/none/0"]["marks"]
    parts = [
        table("pass@1 at the end", lags, means),
        table("against lag 0", lags[1:], aged),
        table("gain over `none`", lags, gains),
        table("pass@1 after step", marks, shown),
    ]
    return "\n\n".join(parts)


def picture(found: Found, path: Path) -> None:
    """Mean curves of all arms, a panel for each learning rate and lag."""
    figure, axes = plt.subplots(len(RATES), len(LAGS), figsize=(11, 5), sharex=True, sharey=True)
    for (rate, lag), axis in zip(itertools.product(RATES, LAGS), axes.flat, strict=True):
        for name in ARMS:
            each = found[f"{rate:g}/{name}/{lag}"]
            axis.plot([0, *each["marks"]], [np.mean(c) for c in (each["before"], *each["curve"])])
        axis.set_title(f"lag {lag}, learning rate {rate:g}", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(ARMS, fontsize=8)
    figure.supxlabel("step")
    figure.supylabel("held-out pass@1, mean of 6 seeds")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print the tables and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    given = parser.parse_args()
    found = measure(given.results, given.seeds, arms())
    for rate in RATES:
        print(f"\n## Learning rate {rate:g}\n\n{report(found, rate)}")
    picture(found, Path(__file__).parents[3] / "docs/images/lag.png")


if __name__ == "__main__":
    main()
