"""IPO on pairs of a file: the margin of log-ratios is regressed onto a finite target.

Paper: Azar et al. 2023, "A General Theoretical Paradigm to Understand Learning from Human
Preferences"; the log-ratios are means over tokens, as the authors report.

    jaxrl train ipo --data pairs.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import dpo


def config() -> Config:
    """The recipe."""
    base = dpo.config()
    return dataclasses.replace(
        base,
        recipe="ipo",
        objective=dataclasses.replace(base.objective, policy="pair_ipo", policy_args={"tau": 0.1}),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-6),
    )
