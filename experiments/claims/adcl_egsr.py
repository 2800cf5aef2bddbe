"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.config import CurriculumConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Both parts against neither, at equal samples."""
    method = arm(recipes.load("adcl_egsr"), steps=60)
    unaided = GuidanceConfig("inpaint", {"rows": 1, "low": 0.0, "high": 0.0})
    return Effect(
        claim="sorted prompts and reformulated solutions solve what samples fail",
        task=hard_prompts(copying=0.25),
        method=method,
        ablation=dataclasses.replace(method, guidance=unaided, curriculum=CurriculumConfig()),
        statistic="pass@1/1",
    )
