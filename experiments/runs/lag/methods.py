"""Learning curves by the age of the data, of whole recipes and of their ablations, see PLAN.md.

PYTHONPATH=. python experiments/runs/lag/methods.py RESULTS.json --seeds 0 1 2 3 4 5
"""

import argparse
import dataclasses
import itertools
from pathlib import Path

import experiment
import matplotlib.pyplot as plt
import numpy as np

from experiments.claims import karl, scalerl, vcpo
from experiments.lab import Arm, statistics

RECIPES = {"vcpo": vcpo, "scalerl": scalerl, "karl": karl}
ARMS = ("method", "ablation")
LAGS = experiment.LAGS
RATE = 1e-3


def arm(name: str, which: str, lag: int) -> Arm:
    """The method of a recipe or its ablation, at an age of the data in steps."""
    given = getattr(RECIPES[name].effect(), which)
    return dataclasses.replace(given, steps=80, delay=lag, sync_every=1, learning_rate=RATE)


def arms() -> dict[str, Arm]:
    """All recipes, arms and lags, by their keys in the results."""
    every = itertools.product(LAGS, RECIPES, ARMS)
    return {f"{name}/{which}/{lag}": arm(name, which, lag) for lag, name, which in every}


def report(found: experiment.Found) -> str:
    """The tables of README.md."""
    curves = {key: np.array(each["curve"]) for key, each in found.items()}
    lags = [f"lag {lag}" for lag in LAGS]
    means = {
        f"`{name}`, {which}": [f"{curves[f'{name}/{which}/{lag}'][-1].mean():.3f}" for lag in LAGS]
        for name, which in itertools.product(RECIPES, ARMS)
    }
    aged = {
        f"`{name}`, {which}": [
            statistics.interval(curves[f"{name}/{which}/{n}"][-1] - curves[f"{name}/{which}/0"][-1])
            for n in LAGS[1:]
        ]
        for name, which in itertools.product(RECIPES, ARMS)
    }
    gains = {
        f"`{name}`": [
            statistics.interval(
                curves[f"{name}/method/{n}"][-1] - curves[f"{name}/ablation/{n}"][-1]
            )
            for n in LAGS
        ]
        for name in RECIPES
    }
    shown = {
        f"`{name}`, {which}, lag {lag}": [
            f"{x:.3f}" for x in curves[f"{name}/{which}/{lag}"].mean(axis=1)
        ]
        for name, which, lag in itertools.product(RECIPES, ARMS, LAGS)
    }
    marks = found["vcpo/method/0"]["marks"]
    parts = [
        experiment.table("pass@1 at the end", lags, means),
        experiment.table("against lag 0", lags[1:], aged),
        experiment.table("method less ablation", lags, gains),
        experiment.table("pass@1 after step", marks, shown),
    ]
    return "\n\n".join(parts)


def picture(found: experiment.Found, path: Path) -> None:
    """Mean curves, a panel for each recipe and lag."""
    figure, axes = plt.subplots(len(RECIPES), len(LAGS), figsize=(11, 7), sharex=True, sharey=True)
    for (name, lag), axis in zip(itertools.product(RECIPES, LAGS), axes.flat, strict=True):
        for which in ARMS:
            each = found[f"{name}/{which}/{lag}"]
            axis.plot([0, *each["marks"]], [np.mean(c) for c in (each["before"], *each["curve"])])
        axis.set_title(f"{name}, lag {lag}", fontsize=9)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(ARMS, fontsize=8)
    figure.supxlabel("step")
    figure.supylabel("held-out pass@1, mean of the seeds")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print the tables and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    given = parser.parse_args()
    found = experiment.measure(given.results, given.seeds, arms())
    print(report(found))
    picture(found, Path(__file__).parents[3] / "docs/images/lag-methods.png")


if __name__ == "__main__":
    main()
