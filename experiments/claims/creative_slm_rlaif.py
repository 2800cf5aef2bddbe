"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm
from experiments.lab.greetings import by_pairs, by_principles, greetings
from jaxrl.launch import recipes


def effect() -> Effect:
    """Corrected principles against a reward model, from the same comparisons."""
    method = arm(recipes.load("creative_slm_rlaif"), steps=80, rewards=by_principles)
    return Effect(
        claim="from few comparisons, a list of principles learns more of quality than a model",
        task=greetings(),
        method=method,
        ablation=dataclasses.replace(method, rewards=by_pairs),
        statistic="score",
        stands_for="format_following",
    ).also("many comparisons", task=greetings(pairs=4000))
