"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes


def effect() -> Effect:
    """With forks and without, where every symbol has three right codes."""
    method = arm(recipes.load("cure"), steps=60)
    return Effect(
        claim="where there are many right answers, forks keep more of them alive",
        task=cipher(((12, 0.8), (6, 0.1)), (((2, 1), 1.0),), modes=3),
        method=method,
        ablation=dataclasses.replace(method, guidance=None),
        statistic="distinct",
    )
