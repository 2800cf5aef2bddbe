"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.thoughts import own_domain, preferred, sums_aloud
from jaxrl.launch import recipes


def effect() -> Effect:
    """Answers after a thought against answers at once, by a reward model that sees the answer."""
    method = arm(recipes.load("rlmt"), steps=80, rewards=preferred, weights=(1.0, 0.0))
    at_once = dataclasses.replace(method, weights=(0.0, 1.0))
    return Effect(
        claim="under one reward model, answers after a thought are right more often",
        task=sums_aloud(),
        method=method,
        ablation=at_once,
        warm_steps=500,
        measure=own_domain,
    ).also(
        "true reward",
        method=dataclasses.replace(method, rewards=None),
        ablation=dataclasses.replace(at_once, rewards=None),
    )
