"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, hard_prompts
from jaxrl.launch import recipes


def effect() -> Effect:
    """With and without prefixes, at equal samples."""
    method = arm(recipes.load("prefixrl"), steps=60)
    return Effect(
        claim="prefixes of solutions make hard prompts learnable, without a prefix too",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, guidance=None),
        statistic="pass@1/1",
        on_real_model=True,
    )
