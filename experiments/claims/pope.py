"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from experiments.lab import Arm, Effect, arm, hard_prompts
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Second attempts from a prefix against second attempts from nothing."""
    method = arm(recipes.load("pope"), steps=60)
    others = {
        "clip-higher": ObjectiveConfig(policy_args={"clip_high": 0.28}),
        "entropy bonus": ObjectiveConfig(entropy_coef=0.01),
        "pass@k": ObjectiveConfig(advantage="pass_at_k", advantage_args={"k": 4}),
    }
    plain = dataclasses.replace(
        recipes.load("pope").extensions["guidance"], args={"rows": 4, "help": 0.0}
    )
    return Effect(
        claim="guided exploration solves prompts that more samples do not",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, guidance=plain),
        statistic="pass@1/1",
        further={name: unguided(change) for name, change in others.items()},
    )


def unguided(objective: ObjectiveConfig) -> Callable[[Arm], Arm]:
    """The method without its guide, by another objective."""
    return lambda method: dataclasses.replace(method, guidance=None, objective=objective)
