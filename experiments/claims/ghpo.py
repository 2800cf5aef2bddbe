"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.launch import recipes


def effect() -> Effect:
    """Second attempts with a hint against second attempts without."""
    method = arm(recipes.load("ghpo"), steps=60)
    plain = dataclasses.replace(recipes.load("ghpo").extensions["guidance"], args={"help": 0.0})
    return Effect(
        claim="hints for failed groups beat sampling them again",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, guidance=plain),
        statistic="pass@1/1",
        on_real_model=True,
    )
