"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.launch.recipes.data_selection.drive_pre_grpo import UNIFORM


def effect() -> Effect:
    """Two stages against one, at equal samples; the statistic is the hard prompts'."""
    hard = dataclasses.replace(UNIFORM, retain=0.5, retain_every=10)
    second = {"prompts": 2, "group_size": 64, "curriculum": hard}
    method = arm(recipes.load("drive_pre_grpo"), steps=60, stages=((0, {}), (30, second)))
    return Effect(
        claim="64 samples of the hardest prompts teach them better than 8 of each",
        task=cipher(((12, 0.9), (8, 0.1)), (((3, 0), 0.6), ((1, 2), 0.4)), problems=512),
        method=method,
        ablation=dataclasses.replace(method, stages=()),
        statistic="pass@1/1",
    )
