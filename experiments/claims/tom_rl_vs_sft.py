"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.beliefs import beliefs, valid
from jaxrl.launch import recipes


def effect() -> Effect:
    """Traces after GRPO, and before it."""
    method = arm(recipes.load("tom_rl_vs_sft"), steps=100)
    return Effect(
        claim="RL on answers leaves a small model less valid traces than it had",
        task=beliefs(),
        method=method,
        ablation=dataclasses.replace(method, learning_rate=0.0),
        statistic="validity",
        better="lower",
        warm_steps=400,
        measure=valid,
    ).also("whole traces", task=beliefs(silent=0.0))
