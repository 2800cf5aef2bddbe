"""PAR: the reward is the probability of being preferred to a reference answer.

Paper: Fu et al. 2025, "Reward Shaping to Mitigate Reward Hacking in RLHF"
Idea: a reward model is least to be trusted far above what it has seen, and an unbounded reward
pulls the policy just there. A sigmoid of the reward centred at a reference answer is bounded, rises
fast at first and flattens above.
Formula: `r = sigmoid(r_RM(x, y) - r_RM(x, y_ref))`
Claim: at least 5 points of AlpacaEval win rate above other shapings; no hacking after two epochs.
Reading: the task's own solution is the one reference; it is scored in the group and not trained on.
Advantages are centred by the group and not scaled, so that the reward's bound is the advantage's.
The ablation trains on the reward model's own score. The paper's other shapings stand beside it:
scores clipped to a standard deviation around their mean, put between their least and largest, and
standardised. The authors take these figures over the run, and here they are those of the batch.
"""

import dataclasses

import jax
import jax.numpy as jnp

from experiments.lab import Effect, Sampled, arm, cipher, with_objective
from experiments.lab.tasks import FILLER
from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
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
    others = {
        name: with_objective(dataclasses.replace(raw, shaping=f"{__name__}:{shaping.__name__}"))
        for name, shaping in (("clip", clipped), ("min-max", ranged), ("z-score", standardised))
    }
    return Effect(
        claim="preference over a reference resists a hackable reward model",
        task=cipher(
            ((12, 0.8), (6, 0.3)), (((2, 1), 1.0),), filler_rate=0.1, slack=2, partial=True
        ),
        method=method,
        ablation=dataclasses.replace(method, objective=raw),
        statistic="score",
        further=others,
    )


def clipped(rewards: jax.Array, *, expert: jax.Array, valid: jax.Array) -> jax.Array:
    """Rewards [N], within a standard deviation of the mean of the samples."""
    own = valid & ~expert
    mean, std = jnp.mean(rewards, where=own), jnp.std(rewards, where=own)
    return jnp.clip(rewards, mean - std, mean + std)


def ranged(rewards: jax.Array, *, expert: jax.Array, valid: jax.Array) -> jax.Array:
    """Rewards [N], 0 for the least of the samples and 1 for the largest."""
    own = valid & ~expert
    low = jnp.min(rewards, where=own, initial=jnp.inf)
    high = jnp.max(rewards, where=own, initial=-jnp.inf)
    return (rewards - low) / jnp.maximum(high - low, 1e-6)


def standardised(rewards: jax.Array, *, expert: jax.Array, valid: jax.Array) -> jax.Array:
    """Rewards [N], less the mean of the samples, in units of their standard deviation."""
    own = valid & ~expert
    mean, std = jnp.mean(rewards, where=own), jnp.std(rewards, where=own)
    return (rewards - mean) / jnp.maximum(std, 1e-6)


def likes_fillers(batch: Sampled) -> jax.Array:
    """Twice the share of right symbols, and 0.75 for every filler: most for fillers alone."""
    return 2.0 * batch.rewards + 0.75 * jnp.sum(batch.tokens == FILLER, axis=1)
