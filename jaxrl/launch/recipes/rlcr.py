"""RLCR: the answer comes with a confidence, and a proper scoring rule makes it honest.

Paper: Damani et al. 2025, "Beyond Binary Rewards: Training LMs to Reason About Their Uncertainty"
Idea: a reward for being right pays for guesses and says nothing of doubt. Let the model state how
sure it is, and take the Brier score of that off the reward. A bounded proper scoring rule leaves
the best answer the best, and makes the true chance of being right the best thing to state.
Formula: `r = 1[right] - (q - 1[right])^2`
Claim: calibration much better in and out of domain at no loss of accuracy; plain RL hurts it.
Reading: no confidence, or none that can be read, earns -1. The ablation rewards the answer alone,
in the same form. Some answers cannot be known; in the task `own errors`, all can.
"""

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm
from experiments.lab.confidence import SOURCES, calibration, confidence, uncertain
from jaxrl.config import Config, RolloutConfig
from jaxrl.launch.recipes import quickstart
from jaxrl.losses.regularizers import calibrated_reward


def config() -> Config:
    """The quickstart's sums, with a confidence after each."""
    inner = '{"digits": 2, "operators": "+", "slips": 0.65}'
    return dataclasses.replace(
        quickstart.config(),
        recipe="rlcr",
        task="calibrated",
        task_args={"of": "arithmetic", "args": inner},
        rollout=RolloutConfig(prompts=48, group_size=8, max_prompt_tokens=16, max_new_tokens=40),
    )


def right_and_honest(batch: Sampled) -> jax.Array:
    """RLCR's reward of completions."""
    stated = confidence(batch.tokens)
    return jnp.where(jnp.isnan(stated), -1.0, calibrated_reward(batch.rewards, stated))


def effect() -> Effect:
    """Calibration with the Brier term in the reward and without."""
    method = arm(config(), steps=100, rewards=right_and_honest)
    return Effect(
        claim="the Brier term makes stated confidences true",
        task=uncertain(),
        method=method,
        ablation=dataclasses.replace(method, rewards=None),
        statistic="ece",
        better="lower",
        stands_for="calibrated",
        measure=calibration,
    ).also("own errors", task=uncertain(usual=(1.0,) * SOURCES))
