"""A reward model from preferences of a file: answers that were chosen score above the rejected.

The model has a linear score of the last token in place of its output head (Ouyang et al. 2022,
"Training language models to follow instructions"). The loss is Bradley and Terry's of pairs, by a
margin where a row has one, and Plackett and Luce's of longer rankings. A run that samples takes the
result as its reward: `--reward runs/reward-seed0`.

    jaxrl train reward --data pairs.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import sft


def config() -> Config:
    """The recipe."""
    base = sft.config()
    return dataclasses.replace(
        base,
        recipe="reward",
        labels=1,
        data=dataclasses.replace(base.data, kinds=("preference", "ranking")),
        objective=dataclasses.replace(
            base.objective, policy="ranked_reward", aggregation="seq-mean-token-mean"
        ),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-5),
    )
