"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses
import functools

from experiments.lab import Effect, arm, cipher
from jaxrl.launch import recipes
from jaxrl.launch.recipes.objectives.dph_rl import PRESAMPLE
from jaxrl.training.objective import ObjectiveConfig


def effect() -> Effect:
    """Forward against reverse KL where three answers to each symbol are right, and half of the
    prompts are easy."""
    method = arm(recipes.load("dph_rl"), steps=80 + PRESAMPLE)
    reverse = ObjectiveConfig(kl_coef=0.05, kl="k2")
    task = functools.partial(cipher, ((12, 1.0), (6, 0.4)), (((3, 0), 0.5), ((2, 1), 0.5)))
    return Effect(
        claim="the forward KL keeps more of the right answers alive than the reverse KL",
        task=task(modes=3),
        method=method,
        ablation=dataclasses.replace(method, objective=reverse, replay=None, steps=80),
        statistic="distinct",
        warm_steps=300,
        own_task=True,
    ).also("control", task=task(modes=1), statistic="pass@1")
