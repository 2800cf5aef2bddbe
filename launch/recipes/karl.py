"""KARL without its data synthesis: OAPL on a search agent, regression onto the optimal advantage.

Paper: Databricks 2026, "KARL: Knowledge Agents via Reinforcement Learning"
Idea: the optimum of KL-regularised RL around the sampler has `beta log(pi / pi_gen) = r - V` with a
soft value V. Fit that by least squares over the sampler's own groups: no ratio, no clip, and the
sampler need be renewed only now and then.
Formula: `(beta log(pi(y) / pi_gen(y)) - (r - V))^2`, `V = beta_1 log mean_i exp(r_i / beta_1)`,
with `log pi(y)` the sum over the agent's own tokens
Claim: Pareto-optimal search agents from large-batch off-policy RL that withstands the mismatch of
trainer and sampler.
Reading: objective recalled. The agent asks the search engine of `retrieval` for facts that each
problem has of its own, and its tokens of all turns are one log-ratio; results are masked. A short
imitation stands for the agent that the paper begins with. `--with sampler_refresh
--sampler-refresh.every 20` renews the sampler every 20 steps, and `--sampling.weights int8` makes
it differ from the trainer. One search regime of the paper's six, and neither its synthesis of
questions nor its test-time compute. The lab's effect is of the loss on one turn, with a sampler as
old; the ablation is REINFORCE on the same data.
"""

import dataclasses

from jaxrl.config import Config, WarmStartConfig
from jaxrl.launch.lab import Effect, arm, cipher
from jaxrl.launch.recipes import retrieval
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """Questions of two hops after a short warm start, four updates on each batch."""
    objective = ObjectiveConfig(
        policy="oapl",
        policy_args={"beta": 0.3},
        advantage="soft_advantages",
        aggregation="seq-mean-token-mean",
    )
    return dataclasses.replace(
        retrieval.config(),
        recipe="karl",
        warm_start=WarmStartConfig(steps=40, batch_size=64, learning_rate=2e-3),
        objective=objective,
        updates_per_batch=4,
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
