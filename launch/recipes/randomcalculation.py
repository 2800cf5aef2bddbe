"""RandomCalculation's reward; the lab has clean problems only, and no contaminated model.

Paper: Wu et al. 2025, "Reasoning or Memorization? Unreliable Results of Reinforcement Learning Due
to Data Contamination"
Idea: random and inverted rewards seemed to improve models on benchmarks that had leaked into their
pretraining. Fresh expressions of any length are clean, and there the truth of the reward decides.
Formula: `r = 1 - min(|a - b|, 1) / 2 - min(|a - b| / (|b| + eps), 1) / 2`
Claim: on clean problems true rewards improve steadily, noisy and wrong ones do not.
Reading: formula recalled; answers are asked for to two decimals. The ablation rewards by chance,
and beside it the reward is inverted.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.launch.lab import Arm, Effect, Sampled, arm, cipher
from jaxrl.launch.recipes import quickstart


def config() -> Config:
    """The quickstart on expressions of two operations."""
    base = quickstart.config()
    return dataclasses.replace(
        base,
        recipe="randomcalculation",
        task="random_calculation",
        task_args={"largest": 9, "answer_format": "text", "template": "{question}="},
        rollout=dataclasses.replace(base.rollout, max_new_tokens=10),
    )


def by_chance(batch: Sampled) -> jax.Array:
    """A coin for each completion."""
    return jax.random.bernoulli(batch.key, 0.5, batch.rewards.shape).astype(jnp.float32)


def effect() -> Effect:
    """Partial credit, as in the continuous reward, against coins."""
    method = arm(config(), steps=60)
    return Effect(
        claim="on clean problems a true reward teaches and a random one does not",
        task=cipher(((12, 0.8), (6, 0.3)), (((2, 1), 1.0),), partial=True),
        method=method,
        ablation=dataclasses.replace(method, rewards=by_chance),
        further={"inverted": inverted},
        statistic="score",
    )


def inverted(method: Arm) -> Arm:
    """The method with a reward that is the higher the worse the answer is."""
    return dataclasses.replace(method, rewards=upside_down)


def upside_down(batch: Sampled) -> jax.Array:
    """1 less the reward [N]."""
    return 1.0 - batch.rewards
