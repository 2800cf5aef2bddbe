"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

from experiments.lab import Arm, Effect, arm, graded
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """Half of the prompts by their low likelihood, against all, at equal samples."""
    passes = CurriculumConfig("passes")
    before = Arm(steps=32, learning_rate=0.0, curriculum=passes)  # the base model, twice each
    method = arm(
        recipes.load("self_low_likelihood_rlvr"),
        sizes={"curriculum.keep": 128},
        steps=60,
        before=before,
    )
    plain = Arm(steps=60)
    return Effect(
        claim="training on what is unlikely widens what 8 samples can solve",
        task=graded(),
        method=method,
        ablation=plain,
        statistic="pass@8",
    )
