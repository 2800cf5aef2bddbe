"""Arms of the lab whose figures are drawn, not trained, for tests of the command."""

import subprocess

import numpy as np

from experiments.effects import command as effects
from experiments.effects import table
from experiments.lab import arms, stores


class Fake:
    """Arms whose figures are drawn, with a planted effect of the method."""

    def __init__(self, planted: float):
        self.planted, self.ran = planted, []

    def __call__(self, effect, given, seeds):
        self.ran.append((effect.task.digest(), arms.describe(given), tuple(seeds)))
        better = given.objective.policy == "aepo" and "alpha" not in given.objective.policy_args
        noise = [np.random.default_rng([s, 1]).normal(0, 0.02) for s in seeds]
        own = [np.random.default_rng([s, 2 + better]).normal(0, 0.01) for s in seeds]
        values = [0.5 + self.planted * better + a + b for a, b in zip(noise, own, strict=True)]
        spent = {"tokens": [100.0] * len(seeds), "updates": [9.0] * len(seeds)}
        figures = {"pass@1": values, "pass@1/1": values} | spent
        curves = {k: [(0.9 * np.array(v)).tolist(), v] for k, v in figures.items()}
        before = {"pass@1": [0.1] * len(seeds)}
        return {
            "final": figures, "area": figures, "before": before, "curves": curves, "marks": [1, 2],
            "minutes": 0.1,
        }  # fmt: skip


def play(monkeypatch, fake):
    monkeypatch.setattr(effects, "_store", lambda said: stores.Store(table.RESULTS, fake, said))


def git(folder, *command):
    done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
