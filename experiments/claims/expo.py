"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Second attempts that see the solution against second attempts that do not."""
    method = arm(recipes.load("expo"), steps=60)
    unaided = GuidanceConfig("inpaint", {"rows": 2, "low": 0.0, "high": 0.0})
    return Effect(
        claim="learning its own explanations solves prompts that it fails",
        task=hard_prompts(copying=0.25),
        method=method,
        ablation=dataclasses.replace(method, guidance=unaided),
        statistic="pass@1/1",
    )
