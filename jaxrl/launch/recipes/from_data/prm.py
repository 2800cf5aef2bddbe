"""A process reward model from stepwise labels of a file: each step of an answer is right or wrong.

Paper: Lightman et al. 2023, "Let's Verify Step by Step". Steps are lines, and the score of a step
is read at its end. The loss is the cross-entropy of the steps' labels. Where rows have a reference
solution in place of labels, their steps are aligned with its steps (Rizvi et al. 2025, "SPARE").

    jaxrl train prm --data steps.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import reward


def config() -> Config:
    """The recipe."""
    base = reward.config()
    return dataclasses.replace(
        base,
        recipe="prm",
        data=dataclasses.replace(base.data, kinds=("stepwise", "referenced")),
        objective=dataclasses.replace(
            base.objective, policy="stepwise_reward", aggregation="token-mean"
        ),
    )
