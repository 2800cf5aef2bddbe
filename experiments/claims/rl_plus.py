"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.launch import recipes


def effect() -> Effect:
    """With and without the external term: what 8 samples can solve."""
    method = arm(recipes.load("rl_plus"), steps=60)
    alone = dataclasses.replace(
        method.objective,
        policy="ppo_clip",
        advantage="sampled_advantages",
    )
    return Effect(
        claim="solutions from outside widen what 8 samples can solve",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=alone),
        statistic="pass@8",
    )
