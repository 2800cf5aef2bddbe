"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Turns of GRPO and DPO against GRPO alone, at equal rollouts."""
    method = arm(recipes.load("veripo"), steps=80)
    alone = ObjectiveConfig(aggregation="seq-mean-token-mean")
    return Effect(
        claim="phases of DPO on the rollouts' own contrasts beat GRPO at equal rollouts",
        task=cipher(((12, 0.8), (8, 0.2)), (((1, 2), 1.0),), filler_rate=0.2, slack=4),
        method=method,
        ablation=dataclasses.replace(method, objective=alone, reference=None),
        over="area",
        on_real_model=True,
    )
