"""RLCR: the answer comes with a confidence, and a proper scoring rule makes it honest.

Paper: Damani et al. 2025, "Beyond Binary Rewards: Training LMs to Reason About Their Uncertainty"
Idea: a reward for being right pays for guesses and says nothing of doubt. Let the model state how
sure it is, and take the Brier score of that off the reward. A bounded proper scoring rule leaves
the best answer the best, and makes the true chance of being right the best thing to state.
Formula: `r = 1[right] - (q - 1[right])^2`
Claim: calibration much better in and out of domain at no loss of accuracy; plain RL hurts it.
Reading: no confidence, or none that can be read, earns -1. The ablation rewards the answer alone,
in the same form.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import Config, RolloutConfig
from jaxrl.types import Params
from launch.lab import Arm, Effect, Problems, Sampled, Task, arm, attempts
from launch.lab.tasks import ASK, EOS, FIRST
from launch.recipes import quickstart
from losses.regularizers import calibrated_reward
from models.config import DecoderConfig

SYMBOLS, BINS = 8, 11
KNOWN = np.linspace(0.15, 0.95, SYMBOLS)
"""How often the usual answer to each symbol is the right one: the most that can be known."""


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


def hazy() -> Task:
    """One symbol and an answer that only chance decides: say which, and how sure you are."""
    rng = np.random.default_rng(0)

    def make(size: int, *, pupil: bool) -> Problems:
        symbols = rng.integers(SYMBOLS, size=size)
        usual = rng.random(size) < (0.7 if pupil else KNOWN[symbols])
        other = (symbols + rng.integers(2, SYMBOLS, size=size)) % SYMBOLS
        answer = FIRST + np.where(usual, (symbols + 1) % SYMBOLS, other)
        sure = rng.integers(BINS, size=size)
        gold = np.stack([answer, FIRST + SYMBOLS + sure, np.full(size, EOS)], axis=1)
        prompt = np.stack([FIRST + symbols, np.full(size, ASK)], axis=1)
        fields = (prompt, answer[:, None], gold, np.zeros(size), prompt)
        return Problems(*(a.astype(np.int32) for a in fields))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        return (completion[0] == answer[0]).astype(jnp.float32)

    return Task(
        vocabulary=FIRST + SYMBOLS + BINS,
        train=make(256, pupil=False),
        test=make(256, pupil=False),
        reward=reward,
        pupil=make(4096, pupil=True),
    )


def confidence(tokens: jax.Array) -> jax.Array:
    """Stated in completions [..., T]: in [0, 1], or nan where nothing is."""
    stated = tokens[..., 1] - FIRST - SYMBOLS
    return jnp.where((stated >= 0) & (tokens[..., 2] == EOS), stated / (BINS - 1), jnp.nan)


def right_and_honest(batch: Sampled) -> jax.Array:
    """RLCR's reward of completions."""
    stated = confidence(batch.tokens)
    return jnp.where(jnp.isnan(stated), -1.0, calibrated_reward(batch.rewards, stated))


def calibration(
    model: DecoderConfig, task: Task, arm: Arm, params: Params, start: Params
) -> dict[str, np.ndarray]:
    """`brier`; `ece`, the expected calibration error over stated values; `accuracy`. Each [S].

    What states no confidence counts as stating 1.
    """
    written, right = attempts(model, task, arm, params)
    stated = np.nan_to_num(np.asarray(confidence(written.tokens)), nan=1.0)
    bins = np.round(stated * (BINS - 1))
    gaps = [np.abs(np.where(bins == b, stated - right, 0.0).mean(axis=(1, 2))) for b in range(BINS)]
    return {
        "brier": ((stated - right) ** 2).mean(axis=(1, 2)),
        "ece": np.sum(gaps, axis=0),
        "accuracy": right.mean(axis=(1, 2)),
    }


def effect() -> Effect:
    """Calibration with the Brier term in the reward and without."""
    method = arm(config(), steps=100, rewards=right_and_honest)
    return Effect(
        claim="the Brier term makes stated confidences true",
        task=hazy(),
        method=method,
        ablation=dataclasses.replace(method, rewards=None),
        statistic="ece",
        better="lower",
        measure=calibration,
    )
