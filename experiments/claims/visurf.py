"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """With and without the label's advantage."""
    method = arm(recipes.load("visurf"), steps=60)
    alone = ObjectiveConfig(advantage="sampled_advantages")
    return Effect(
        claim="a label in the group teaches what samples fail",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        statistic="pass@1/1",
    )
