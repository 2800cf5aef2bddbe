"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.launch import recipes


def effect() -> Effect:
    """With and without the reference, on prompts that samples fail."""
    method = arm(recipes.load("grao"), steps=60)
    alone = dataclasses.replace(method.objective, policy="ppo_clip", advantage="sampled_advantages")
    return Effect(
        claim="references in the loss beat GRPO beside them",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
    )
