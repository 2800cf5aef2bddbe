"""PF-PPO's best-worst filter, without a critic: train on what the reward ranks first and last.

Paper: Shen & Zhang 2024, "Policy Filtration in RLHF to Fine-Tune LLM for Code Generation"
Idea: a reward model is most reliable at the ends of its range. Sample more than is trained on, rank
each prompt's samples by reward, and keep the best and the worst.
Formula: PPO on `{i : rank_i = 1 or rank_i = N}` of each prompt's N samples
Claim: state of the art for 7B on HumanEval, MBPP and LeetCode contests; best-worst and best-random
are the strong filters.
Reading: best-worst, one each of 8, with the group's baseline in place of a critic; the choice of
the filter by R^2 on labelled prompts is left out. The ablation trains on all samples.
"""

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm, cipher
from jaxrl.config import Config
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart on the best and the worst of each group."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="pf_ppo",
        objective=ObjectiveConfig(rows="best_worst"),
    )


def effect() -> Effect:
    """Filtered against whole groups, under a reward model that cannot tell half right answers."""
    method = arm(config(), steps=60, rewards=unsure_in_the_middle)
    return Effect(
        claim="the ends of the ranking teach better than all of it",
        task=cipher(((12, 0.8), (8, 0.3)), (((1, 2), 1.0),), partial=True),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig()),
        statistic="score",
    )


def unsure_in_the_middle(batch: Sampled) -> jax.Array:
    """All right is 1 and all wrong is 0; anything between gets a score at random."""
    between = (batch.rewards > 0) & (batch.rewards < 1)
    guess = jax.random.uniform(batch.key, batch.rewards.shape, maxval=0.95)
    return jnp.where(between, guess, batch.rewards)
