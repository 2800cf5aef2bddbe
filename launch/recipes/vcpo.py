"""VCPO: a stale batch steps as far as its effective sample size, with a least-variance baseline.

Paper: Huang et al. 2026, "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs"
Idea: with age the importance weights of a batch concentrate on a few samples and the gradient's
variance explodes. Measure that by the effective sample size and shorten the step by it; and take
the baseline that minimises the variance of the weighted gradient.
Formula: `-ESS^(1/2) w (R - b) log pi`, `w = min(pi / pi_b, c)`, `b = sum w^2 l R / sum w^2 l`
Claim: stable at 128 steps off-policy, 2.5 times faster than synchronous training.
Reading: the map from sample size to step (a square root, as a factor of the loss), the truncation
and the lengths that stand for gradient norms. The truncation is far out, for the baseline adds no
bias only to whole weights. Under Adam a factor of the loss counts only as far as it varies between
batches. The ablation is importance sampling alone. A first look, on data 16 steps old, gave -0.361
[-0.814, +0.092].
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.objective import ObjectiveConfig
from launch.lab import Effect, arm, cipher
from launch.recipes import quickstart


def config() -> Config:
    """The quickstart with VCPO's objective, four updates on each batch."""
    objective = ObjectiveConfig(
        policy="losses.off_policy:vcpo",
        policy_args={"weight_high": 50.0},
        aggregation="seq-mean-token-sum",
    )
    return dataclasses.replace(
        quickstart.config(), recipe="vcpo", objective=objective, updates_per_batch=4
    )


def effect() -> Effect:
    """On data 64 steps old, with both controls and with neither."""
    method = arm(config(), steps=120, delay=64, updates_per_batch=1)
    args = {"weight_high": 50.0, "power": 0.0, "baseline": "mean"}
    bare = dataclasses.replace(method.objective, policy_args=args)
    return Effect(
        claim="on data 64 steps old, variance control keeps importance sampling stable",
        task=cipher(((6, 0.8), (2, 0.2)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=bare),
    )
