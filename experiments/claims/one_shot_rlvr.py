"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.claims.limr_lim import scored_by
from experiments.lab import Arm, Effect, arm, cipher
from jaxrl.config import CurriculumConfig
from jaxrl.launch import recipes


def effect() -> Effect:
    """One example by its variance against one by chance."""
    before = Arm(steps=40, curriculum=CurriculumConfig("passes"))
    method = arm(recipes.load("one_shot_rlvr"), steps=60, before=before)
    chance = dataclasses.replace(method.curriculum, score="at_random")
    return Effect(
        claim="the example whose accuracy varied most teaches more than one by chance",
        task=cipher(
            ((8, 0.97), (6, 0.02)),
            (((4, 0), 0.5), ((0, 4), 0.5)),
            filler_rate=0.4,
            slack=3,
            problems=64,
        ),
        method=method,
        ablation=dataclasses.replace(method, curriculum=chance),
        further={"solvable, by chance": scored_by("solvable_at_random")},
    )
