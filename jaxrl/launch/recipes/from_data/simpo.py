"""SimPO on pairs of a file: mean log-probabilities with a target margin, without a reference.

Paper: Meng et al. 2024, "SimPO: Simple Preference Optimization with a Reference-Free Reward"

    jaxrl train simpo --data pairs.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import dpo


def config() -> Config:
    """The recipe."""
    base = dpo.config()
    return dataclasses.replace(
        base,
        recipe="simpo",
        objective=dataclasses.replace(
            base.objective, policy="pair_simpo", policy_args={"beta": 2.0, "gamma": 0.5}
        ),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-6),
    )
