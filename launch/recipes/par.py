"""PAR: the reward is the probability of being preferred to a reference answer.

Paper: Fu et al. 2025, "Reward Shaping to Mitigate Reward Hacking in RLHF"
Idea: a reward model is least to be trusted far above what it has seen, and an unbounded reward
pulls the policy just there. A sigmoid of the reward centred at a reference answer is bounded, rises
fast at first and flattens above.
Formula: `r = sigmoid(r_RM(x, y) - r_RM(x, y_ref))`
Claim: at least 5 points of AlpacaEval win rate above other shapings; no hacking after two epochs.
Reading: the task's own solution is the one reference; it is scored in the group and not trained on.
Advantages are centred by the group and not scaled, so that the reward's bound is the advantage's.
The ablation trains on the reward model's own score.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.lab import Effect, Sampled, arm, cipher
from jaxrl.launch.lab.tasks import FILLER
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with rewards measured against the solution."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="par",
        extensions={"guidance": GuidanceConfig("expert_rows")},
        objective=ObjectiveConfig(
            shaping="par",
            advantage="sampled_advantages",
            advantage_args={"scale": "none"},
            rows="jaxrl.losses.rows:sampled",
            kl_coef=0.05,
        ),
    )


def effect() -> Effect:
    """Shaped against raw scores of a reward model that fillers impress without bound."""
    method = arm(config(), steps=80, rewards=likes_fillers)
    raw = dataclasses.replace(method.objective, shaping="")
    return Effect(
        claim="preference over a reference resists a hackable reward model",
        task=cipher(
            ((12, 0.8), (6, 0.3)), (((2, 1), 1.0),), filler_rate=0.1, slack=2, partial=True
        ),
        method=method,
        ablation=dataclasses.replace(method, objective=raw),
        statistic="score",
    )


def likes_fillers(batch: Sampled) -> jax.Array:
    """Twice the share of right symbols, and 0.75 for every filler: most for fillers alone."""
    return 2.0 * batch.rewards + 0.75 * jnp.sum(batch.tokens == FILLER, axis=1)
