"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Second attempts around a given piece against second attempts without one."""
    method = arm(recipes.load("igpo"), steps=60)
    unaided = GuidanceConfig("inpaint", {"low": 0.0, "high": 0.0})
    return Effect(
        claim="inpainted successes solve prompts that a group fails",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, guidance=unaided),
        statistic="pass@1/1",
    )
