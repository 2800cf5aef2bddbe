"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

from experiments.lab import Effect, arm
from experiments.lab.operations import formats
from jaxrl.launch import recipes
from jaxrl.launch.recipes.skills.octothinker import DECAY, STABLE

BRANCHES = {"answers": (0.0, 1.0, 0.0, 0.0, 0.0), "hybrid": (0.0, 0.0, 0.5, 0.5, 0.0)}
"""Weights of the effect's domains in the decay."""


def effect() -> Effect:
    """A decay on chains of thought against one on answers, before the same RL."""
    target = {"weights": (0.0, 0.0, 0.0, 0.0, 1.0)}
    first, last = (0, {}), (STABLE + DECAY, target)
    method, ablation = (
        arm(
            recipes.load("octothinker"),
            steps=90,
            weights=(1.0, 0.0, 0.0, 0.0, 0.0),
            stages=(first, (STABLE, {"weights": BRANCHES[name]}), last),
        )
        for name in ("hybrid", "answers")
    )
    return Effect(
        claim="after a decay on chains of thought, RL ends higher than after one on answers",
        task=formats(),
        method=method,
        ablation=ablation,
        warm_steps=600,
    ).also("five operations", task=formats(length=5))
