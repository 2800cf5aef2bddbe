"""KTO on the rows of a file, each with a label: good answers and bad ones need not be pairs.

Paper: Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization". The
reference point is measured at each step on answers under the prompts of other rows.

    jaxrl train kto --data labelled.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.extensions.mismatched import MismatchedConfig
from jaxrl.launch.recipes.from_data import dpo


def config() -> Config:
    """The recipe."""
    base = dpo.config()
    return dataclasses.replace(
        base,
        recipe="kto",
        data=dataclasses.replace(base.data, kinds=("label",)),
        extensions={"mismatched": MismatchedConfig()},
        objective=dataclasses.replace(
            base.objective, policy="labelled_kto", policy_args={"beta": 0.1}
        ),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-6),
    )
