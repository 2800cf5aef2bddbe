"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Arm, Effect, arm, former, graded
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Half of the prompts by their low likelihood, against all, at equal samples."""
    passes = CurriculumConfig("passes")
    before = Arm(steps=32, learning_rate=0.0, curriculum=passes)  # the base model, twice each
    method = dataclasses.replace(
        arm(recipes.load("self_low_likelihood_rlvr"), steps=60, before=before),
        objective=ObjectiveConfig(kl_coef=0.05, kl=f"{former.__name__}:forward_kl"),
        curriculum=CurriculumConfig(score="least_solved", keep=128),
    )
    plain = Arm(steps=60)
    return Effect(
        claim="training on what is unlikely widens what 8 samples can solve",
        task=graded(),
        method=method,
        ablation=plain,
        statistic="pass@8",
        former="prompts chosen once by an earlier run, and a forward KL; the recipe, as the "
        "released code, leaves out at each step what the policy answers right greedily",
    )
