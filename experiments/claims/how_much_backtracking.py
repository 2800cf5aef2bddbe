"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.claims import four_habits_of_highly_effective_stars as habits
from experiments.lab import Effect, arm
from experiments.lab.locks import Trace, locks
from jaxrl.launch import recipes


def effect() -> Effect:
    """Traces that go back three times against traces that go back once."""
    method = arm(recipes.load("how_much_backtracking"), steps=120, weights=(1.0, 0.0))
    traces = (Trace(mistakes=3), Trace(mistakes=1))
    return Effect(
        claim="RL ends higher after traces that go back more often",
        task=locks(traces),
        method=method,
        ablation=dataclasses.replace(method, weights=(0.0, 1.0)),
        measure=habits.habits,
    ).also("likely settings", task=locks(traces, likely=(0.8, 0.15, 0.05)))
