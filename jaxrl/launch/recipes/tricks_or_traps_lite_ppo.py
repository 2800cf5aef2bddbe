"""Lite PPO: of all the tricks two, advantages in units of the batch and a loss by token.

Paper: Liu et al. 2025, "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning"
Idea: the group's own deviation blows up the noise of groups that nearly agree; the batch's does
not. A mean over all tokens gives long answers their share. With plain PPO clip nothing else is
needed.
Formula: `A = (r - mean_g r) / (std_batch r + eps)`; the mean of `ppo_clip` over all tokens
Claim: the two together beat GRPO and DAPO.
Reading: the abstract does not name the two, they are recalled. The regime that shows the first is a
noisy reward on prompts of very unequal difficulty; the ablation is GRPO.
"""

import dataclasses

import jax

from experiments.lab import Effect, Sampled, arm, cipher
from experiments.lab.variants import wrong_verdicts
from jaxrl.config import Config
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with the two techniques."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="tricks_or_traps_lite_ppo",
        objective=ObjectiveConfig(advantage_args={"scale": "batch"}, aggregation="token-mean"),
    )


def flipped(batch: Sampled) -> jax.Array:
    """One verdict in ten is wrong."""
    return wrong_verdicts(batch, 0.1)


def effect() -> Effect:
    """Against GRPO, under a verifier that errs."""
    method = arm(config(), steps=80, rewards=flipped)
    return Effect(
        claim="under a verifier that errs one time in ten, the two beat GRPO",
        task=cipher(
            ((12, 0.95), (8, 0.2)), (((3, 0), 0.5), ((0, 3), 0.5)), filler_rate=0.2, slack=3
        ),
        method=method,
        ablation=dataclasses.replace(
            method, objective=ObjectiveConfig(aggregation="seq-mean-token-mean")
        ),
        over="area",
    )
