"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.routes import asked, by_route, by_rule, routes
from jaxrl.launch import recipes


def effect() -> Effect:
    """Routed rewards against the rule's alone."""
    method = arm(recipes.load("wethink"), steps=80, rewards=by_route)
    return Effect(
        claim="rules where they can check and a judge elsewhere teach more than either alone",
        task=routes(),
        method=method,
        ablation=dataclasses.replace(method, rewards=by_rule),
        stands_for="arithmetic",
        measure=asked,
    ).also("control", task=routes(forms=1))
