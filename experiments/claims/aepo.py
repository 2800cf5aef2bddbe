"""What is claimed of this recipe, and what it is compared with."""

from __future__ import annotations

import dataclasses

import jax

from experiments.lab import Effect, arm, cipher, with_objective
from jaxrl.launch import recipes
from jaxrl.losses.policy.objectives import Objective, ppo_clip
from jaxrl.losses.reduce.masking import entropy_share
from jaxrl.training.objective import ObjectiveConfig


def hard_clip(
    logp: jax.Array,
    behavior_logp: jax.Array,
    advantages: jax.Array,
    *,
    entropy: jax.Array,
    mask: jax.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    alpha: float = 0.4,
) -> Objective:
    """AEPO without its clip: advantages weighed by entropies, clipped as in PPO; see `aepo`."""
    weight = 1.0 + alpha * entropy_share(entropy, mask)
    widths = {"clip_low": clip_low, "clip_high": clip_high}
    return ppo_clip(logp, behavior_logp, advantages * weight, **widths)


def effect() -> Effect:
    """Where the right code is rare, against the hard clip, on data 4 steps old."""
    method = arm(recipes.load("aepo"), steps=60, delay=4)
    hard = ObjectiveConfig(policy_args={"clip_high": 0.28})
    without = {
        "entropy factor": with_objective(
            ObjectiveConfig(policy="aepo", policy_args={"alpha": 0.0})
        ),
        "gradient past the clip": with_objective(
            ObjectiveConfig(policy="experiments.claims.aepo:hard_clip")
        ),
    }
    return Effect(
        claim="where the right token is rare, a scaled gradient past the clip learns faster",
        task=cipher(((12, 0.8), (6, 0.1)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=hard),
        over="area",
        further=without,
        on_real_model=True,
    )
