"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, lookup
from jaxrl.launch import recipes


def effect() -> Effect:
    """On episodes of a sampler 8 steps old, against PPO that clips around it."""
    method = arm(recipes.load("asearcher"), steps=60, delay=8)
    args = {"clip_low": 0.4, "clip_high": 0.4}
    ppo = dataclasses.replace(method.objective, policy="ppo_clip", policy_args=args)
    return Effect(
        claim="on episodes 8 steps old, the decoupled clip with a cap learns more than PPO",
        task=lookup(hops=2),
        method=method,
        ablation=dataclasses.replace(method, objective=ppo),
    )
