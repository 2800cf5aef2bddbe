"""LOOP: PPO for agents with a leave-one-out baseline, one copy of the model and no critic.

Paper: Chen et al. 2025, "Reinforcement Learning for Long-Horizon Interactive LLM Agents"
Idea: several rollouts of a task, each against the mean of the others; PPO's clip allows several
updates on each batch; log-probabilities are recorded as they are sampled, so no copy of the old
policy is kept. The ratio is by token; tokens of the environment are masked.
Formula: `A_k = R_k - mean_(j != k) R_j`; `-min(r_t A, clip(r_t) A)` on the agent's tokens
Claim: a 32B agent beats OpenAI o1's on AppWorld by 9 points; it learns to read documentation.
Reading: advantage and granularities recalled. Episodes are those of `keydoor`, a world with a state
that actions change, in place of AppWorld's programs and documents; the policy begins from nothing,
without adapters. The ablation is the ratio of the whole trajectory (normalised by length), which
the paper found worse than that of the token.
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.lab import Effect, arm, lookup
from jaxrl.launch.recipes import keydoor
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The episodes of `keydoor` with LOOP's objective, four updates on each batch."""
    objective = ObjectiveConfig(advantage="rloo", aggregation="token-mean")
    return dataclasses.replace(
        keydoor.config(), recipe="loop", objective=objective, updates_per_batch=4
    )


def effect() -> Effect:
    """Ratios by token against ratios by trajectory, in a world to be asked twice."""
    method = arm(config(), steps=40)
    whole = dataclasses.replace(method.objective, policy="gspo")
    return Effect(
        claim="over 4 updates of a batch, ratios by token beat ratios by trajectory",
        task=lookup(hops=2),
        method=method,
        ablation=dataclasses.replace(method, objective=whole),
        over="area",
    )
