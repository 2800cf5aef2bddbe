"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.phases import PRIMED
from experiments.lab.variants import SUMS_WARM_STEPS, sums
from jaxrl.launch import recipes
from jaxrl.launch.recipes.preferences.telechat2 import STAGE


def effect() -> Effect:
    """SFT, DPO and RL against SFT and RL, at equal steps."""
    method = arm(recipes.load("telechat2"), steps=100)
    without = dataclasses.replace(
        method.objective, policy=PRIMED, policy_args={"priming_steps": STAGE}
    )
    return Effect(
        claim="with a stage of DPO between SFT and RL, a policy ends higher than without",
        task=sums(),
        method=method,
        ablation=dataclasses.replace(method, objective=without),
        warm_steps=SUMS_WARM_STEPS,
    )
