"""RLPR: no verifier; the reward is how probable the policy finds the reference after reasoning.

Paper: Yu et al. 2025, "RLPR: Extrapolating RLVR to General Domains without Verifiers"
Idea: answers of general domains have no verifier, but the policy itself says how well its reasoning
leads to the reference answer: put that in the place of its own and take the mean probability of its
tokens, less what it is without reasoning. A product over tokens would hang on the worst of them.
Formula: `r = clip(mean_t p(y*_t | x, z, y*_<t) - mean_t p(y*_t | x, y*_<t), 0, 1)`, and only
prompts whose rewards differ enough
Claim: 7.6 points above VeriFree on TheoremQA and 7.5 on Minerva, in three families of models.
Reading: the filter's threshold is half the batch's own mean deviation, not an average over steps.
The ablation takes the likelihood of the whole reference, as VeriFree does.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config import Config, PolicyRewardConfig, RolloutConfig
from jaxrl.objective import ObjectiveConfig
from launch.lab import Effect, Problems, Sampled, Task, arm
from launch.lab.tasks import ASK, EOS, FIRST
from launch.recipes import quickstart

SYMBOLS, LENGTH = 8, 3


def config() -> Config:
    """Sums of four digits, worked out; what follows the last `=` is the answer."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="rlpr",
        task_args={"digits": 1, "terms": 4, "operators": "+", "worked": True, "slips": 0.65},
        rollout=RolloutConfig(prompts=48, group_size=8, max_prompt_tokens=16, max_new_tokens=24),
        policy_reward=PolicyRewardConfig(use=True, marker="="),
        objective=ObjectiveConfig(rows="losses.rows:spread"),
    )


def phrased() -> Task:
    """Work out the code of each symbol, then say the codes, each in one of two ways.

    The reference takes the common way 7 times in 10; the verifier, which the policy never hears,
    takes either.
    """
    rng = np.random.default_rng(0)
    skill = np.where(np.arange(SYMBOLS) < SYMBOLS // 2, 0.8, 0.3)

    def make(size: int, *, pupil: bool) -> Problems:
        symbols = rng.integers(SYMBOLS, size=(size, LENGTH))
        known = rng.random(symbols.shape) < (skill[symbols] if pupil else 1.0)
        codes = (symbols + np.where(known, 1, 2)) % SYMBOLS
        said = FIRST + SYMBOLS + 2 * codes + (rng.random(symbols.shape) < 0.3)
        ask, end = np.full((size, 1), ASK), np.full((size, 1), EOS)
        prompt = np.concatenate([FIRST + symbols, ask], axis=1)
        gold = np.concatenate([FIRST + codes, ask, said, end], axis=1)
        fields = (prompt, symbols, gold, np.zeros(size), prompt)
        return Problems(*(a.astype(np.int32) for a in fields))

    def reward(answer: jax.Array, completion: jax.Array) -> jax.Array:
        said = (completion[LENGTH + 1 : 2 * LENGTH + 1] - FIRST - SYMBOLS) // 2
        return jnp.all(said == (answer + 1) % SYMBOLS).astype(jnp.float32)

    return Task(
        vocabulary=FIRST + 3 * SYMBOLS,
        train=make(256, pupil=False),
        test=make(64, pupil=False),
        reward=reward,
        pupil=make(4096, pupil=True),
    )


def reference_logp(batch: Sampled, reasoning: jax.Array) -> jax.Array:
    """[N, LENGTH] of the reference answer after `reasoning` [N, R], its closing mark included."""
    answer = batch.problems.gold[:, LENGTH + 1 : -1]
    logp = batch.score(jnp.concatenate([batch.problems.prompt, reasoning, answer], axis=1))
    return logp[:, -LENGTH:]


def probability(batch: Sampled) -> jax.Array:
    """RLPR's reward."""
    mark = jnp.full((len(batch.tokens), 1), ASK)
    own = jnp.concatenate([batch.tokens[:, :LENGTH], mark], axis=1)
    given = jnp.mean(jnp.exp(reference_logp(batch, own)), axis=1)
    without = jnp.mean(jnp.exp(reference_logp(batch, mark)), axis=1)
    return jnp.clip(given - without, 0.0, 1.0)


def likelihood(batch: Sampled) -> jax.Array:
    """VeriFree's: the product."""
    mark = jnp.full((len(batch.tokens), 1), ASK)
    own = jnp.concatenate([batch.tokens[:, :LENGTH], mark], axis=1)
    return jnp.exp(jnp.sum(reference_logp(batch, own), axis=1))


def effect() -> Effect:
    """Mean probability against likelihood, as a verifier that neither has heard sees it."""
    method = arm(config(), steps=80, rewards=probability)
    return Effect(
        claim="the mean probability of a reference teaches more than its likelihood",
        task=phrased(),
        method=method,
        ablation=dataclasses.replace(method, objective=ObjectiveConfig(), rewards=likelihood),
    )
