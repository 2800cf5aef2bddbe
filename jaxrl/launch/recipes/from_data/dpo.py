"""Direct preference optimisation on pairs of a file: the chosen answer against the rejected.

Paper: Rafailov et al. 2023, "Direct Preference Optimization: Your Language Model is Secretly a
Reward Model". The reference is the policy as the run began; with adapters, the model without them.

    jaxrl train dpo --data pairs.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import sft


def config() -> Config:
    """The recipe."""
    base = sft.config()
    return dataclasses.replace(
        base,
        recipe="dpo",
        data=dataclasses.replace(base.data, kinds=("preference",)),
        objective=dataclasses.replace(
            base.objective,
            policy="pair_dpo",
            policy_args={"beta": 0.1},
            aggregation="seq-mean-token-mean",
        ),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-6),
    )
