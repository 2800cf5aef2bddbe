"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """Under a KL term, with the reference moved up and with the first one kept."""
    method = arm(recipes.load("prorl"), steps=100)
    return Effect(
        claim="under the same KL term, moving the reference up lets learning go on",
        task=cipher(((12, 0.8), (8, 0.1)), (((2, 1), 0.5), ((1, 2), 0.5))),
        method=method,
        ablation=dataclasses.replace(method, reference=None),
        on_real_model=True,
    )
