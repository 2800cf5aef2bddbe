"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.launch import recipes


def effect() -> Effect:
    """A precise prior against that of cross-entropy, under the same RL."""
    method = arm(recipes.load("generalised_ntp"), steps=60)
    plain = dataclasses.replace(method.objective, policy_args={"priming_steps": 20, "beta": 0.0})
    return Effect(
        claim="RL after precise pre-training ends higher than after cross-entropy",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, objective=plain),
    )
