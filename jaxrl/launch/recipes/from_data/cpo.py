"""CPO on pairs of a file: a margin of log-probabilities, and likelihood of the chosen.

Paper: Xu et al. 2024, "Contrastive Preference Optimization: Pushing the Boundaries of LLM
Performance in Machine Translation"

    jaxrl train cpo --data pairs.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import dpo


def config() -> Config:
    """The recipe."""
    base = dpo.config()
    return dataclasses.replace(
        base,
        recipe="cpo",
        objective=dataclasses.replace(
            base.objective, policy="pair_cpo", policy_args={"beta": 0.1, "alpha": 1.0}
        ),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-6),
    )
