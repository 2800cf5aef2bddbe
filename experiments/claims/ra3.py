"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.macros import patterned, read
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import recipes
from jaxrl.launch.recipes.skills.ra3_plans import MID


def effect() -> Effect:
    """Mid-training with plans against mid-training without, before the same RL."""
    text, target = (1.0, 0.0), {"weights": (0.0, 1.0)}
    method = arm(
        recipes.load("ra3_plans"),
        steps=100,
        rewards=read,
        weights=text,
        stages=((0, {}), (MID, target)),
    )
    whole = GuidanceConfig("expert_rows", {"rows": method.group_size})
    plain = ((0, {"guidance": whole}), (MID, target | {"guidance": None}))
    return Effect(
        claim="after mid-training with plans, RL is right sooner than after one on bare text",
        task=patterned(),
        method=method,
        ablation=dataclasses.replace(method, stages=plain),
        over="area",
        warm_steps=600,
    ).also("random plans", task=patterned(right=0.0))
