"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.modes import MODES, leaking, modes
from experiments.lab.variants import dealt
from jaxrl.launch import recipes

STEPS = 60


def effect() -> Effect:
    """All modes at once against one after the other."""
    method = arm(recipes.load("magic_token_co_training"), steps=STEPS, weights=(1.0,) * MODES)
    each = (
        (m * STEPS // MODES, {"weights": tuple(float(m == n) for n in range(MODES))})
        for m in range(MODES)
    )
    return Effect(
        claim="fine-tuned on all modes at once, a policy is right in the mode that is asked for",
        task=modes(),
        method=method,
        ablation=dataclasses.replace(method, stages=tuple(each)),
        warm_steps=400,
        measure=leaking,
    ).also("control", task=dealt(MODES), measure=None)
