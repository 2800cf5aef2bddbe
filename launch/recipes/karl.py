"""KARL's loss alone, OAPL: regress the log-ratio to a lagged sampler onto the optimal advantage.

Paper: Databricks 2026, "KARL: Knowledge Agents via Reinforcement Learning"
Idea: the optimum of KL-regularised RL around the sampler has `beta log(pi / pi_gen) = r - V` with a
soft value V. Fit that by least squares over the sampler's own groups: no ratio, no clip, and the
sampler need be renewed only now and then.
Formula: `(beta log(pi(y) / pi_gen(y)) - (r - V))^2`, `V = beta_1 log mean_i exp(r_i / beta_1)`
Claim: Pareto-optimal search agents from large-batch off-policy RL that withstands the mismatch of
trainer and sampler.
Reading: the loss alone; the agents' data synthesis and search environments are not here. The
ablation is REINFORCE on the same lagged data.
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.lab import Effect, arm, cipher
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with OAPL's objective, four updates on each batch."""
    objective = ObjectiveConfig(
        policy="oapl",
        policy_args={"beta": 0.3},
        advantage="soft_advantages",
        aggregation="seq-mean-token-mean",
    )
    return dataclasses.replace(
        quickstart.config(), recipe="karl", objective=objective, updates_per_batch=4
    )


def effect() -> Effect:
    """With a sampler renewed every 20 steps, the regression against the policy gradient."""
    method = arm(config(), steps=80, sync_every=20)
    gradient = ObjectiveConfig(
        policy="reinforce",
        advantage_args={"scale": "none"},
        aggregation="seq-mean-token-mean",
    )
    return Effect(
        claim="with a sampler renewed every 20 steps, regression beats the policy gradient",
        task=cipher(((12, 0.8), (6, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=gradient),
    )
