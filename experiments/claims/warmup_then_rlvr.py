"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.skills import domains
from jaxrl.launch import recipes
from jaxrl.launch.recipes.skills.warmup_then_rlvr import WARMUP


def effect() -> Effect:
    """A warm-up on the toy domain and RL on the target, against RL on the target."""
    target = {"weights": (0.0, 1.0)}
    method = arm(
        recipes.load("warmup_then_rlvr"),
        steps=60,
        weights=(1.0, 0.0),
        stages=((0, {}), (WARMUP, target)),
    )
    cold = dataclasses.replace(method.objective, policy_args={"priming_steps": 0})
    return Effect(
        claim="after a warm-up on another domain, RL on few problems learns sooner",
        task=domains(marked=0.05, known=True, problems=64),
        method=method,
        ablation=dataclasses.replace(method, objective=cold, stages=(), **target),
        over="area",
    ).also("control", task=domains(marked=1.0, known=True, problems=64))
