"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments.lab import Arm, Effect, Task, arm, attempts, held_out
from experiments.lab.locks import Trace, backtracking, locks
from jaxrl.launch import recipes
from jaxrl.models.config import DecoderConfig
from jaxrl.types import Params


def habits(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params, samples: int = 8
) -> dict[str, np.ndarray]:
    """The figures of `held_out`, and `backtracks`: steps back of a completion after NO; [S]."""
    tokens = attempts(model, task, arm, params, samples=1)[0].tokens
    figures = held_out(model, task, arm, params, start, samples=samples)
    return figures | {"backtracks": backtracking(tokens).mean(axis=(1, 2))}


def effect() -> Effect:
    """Priming by traces that go back against traces of equal length that wait."""
    traces = (Trace(mistakes=2), Trace(mistakes=0, waits=2))
    method = arm(recipes.load("four_habits"), steps=120, weights=(1.0, 0.0))
    return Effect(
        claim="a policy primed to go back improves by RL beyond one that was not",
        task=locks(traces),
        method=method,
        ablation=dataclasses.replace(method, weights=(0.0, 1.0)),
        measure=habits,
    ).also("likely settings", task=locks(traces, likely=(0.8, 0.15, 0.05)))
