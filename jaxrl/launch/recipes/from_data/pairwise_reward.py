"""A generative pairwise reward model from preferences of a file: it says which of two is better.

A language model is asked which of two answers to a prompt is better, in both orders, and learns the
letter, `A` or `B`: the loss is the cross-entropy under a softmax over the two (Xu et al. 2025, "A
Unified Pairwise Framework for RLHF"). A run that samples takes the result as its judge, with
`--with judge --judge.pairwise`, or in the recipe `pairwise_rl`.

    jaxrl train pairwise_reward --data pairs.jsonl --model runs/sft-seed0 --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import sft


def config() -> Config:
    """The recipe."""
    base = sft.config()
    return dataclasses.replace(
        base,
        recipe="pairwise_reward",
        data=dataclasses.replace(base.data, kinds=("preference",), comparisons=True),
        objective=dataclasses.replace(
            base.objective, policy="ranked_reward", aggregation="seq-mean-token-mean"
        ),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-5),
    )
