"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.scratchpads import by_reference, by_rollouts, chosen, scratchpads
from jaxrl.launch import recipes


def effect() -> Effect:
    """A process reward model from labels of one pass against one from rollouts, at equal cost."""
    method = arm(recipes.load("spare"), steps=80, rewards=by_reference)
    return Effect(
        claim="at equal cost, labels by a reference teach more than labels by rollouts",
        task=scratchpads(),
        method=method,
        ablation=dataclasses.replace(method, rewards=by_rollouts),
        stands_for="arithmetic",
        measure=chosen,
    ).also("control", task=scratchpads(at_cost=False))
