"""ORPO on pairs of a file: fine-tuning on the chosen and an odds ratio, without a reference.

Paper: Hong et al. 2024, "ORPO: Monolithic Preference Optimization without Reference Model"

    jaxrl train orpo --data pairs.jsonl --model smollm2-135m --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import dpo


def config() -> Config:
    """The recipe."""
    base = dpo.config()
    return dataclasses.replace(
        base,
        recipe="orpo",
        objective=dataclasses.replace(
            base.objective, policy="pair_orpo", policy_args={"beta": 0.1}
        ),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=8e-6),
    )
