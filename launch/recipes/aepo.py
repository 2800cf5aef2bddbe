"""AEPO's loss, without its tree rollout: past the clip, gradients are scaled and not cut.

Paper: Dong et al. 2025, "Agentic Entropy-Balanced Policy Optimization"
Idea: the tokens that open new ways are unlikely ones, whose ratio moves fast and meets the upper
clip first. Past it their gradient is scaled, not cut; and the advantage of a token grows with the
entropy it was drawn from.
Formula: `-(1 + e) / sg(r) r A'` where `A > 0` and `r > 1 + e`, PPO's clip elsewhere;
`A' = A (1 + alpha H_t / max_t H)`
Claim: beats seven RL algorithms on 14 agent data sets; GAIA 47.6 with 1,000 samples.
Reading: formulas recalled, constants ours. The tree rollout that shares a budget between fresh and
branched trajectories is not here. The ablation is DAPO's clip at the same widths.
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.lab import Effect, arm, cipher
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with AEPO's objective, four updates on each batch."""
    objective = ObjectiveConfig(policy="aepo")
    return dataclasses.replace(
        quickstart.config(), recipe="aepo", objective=objective, updates_per_batch=4
    )


def effect() -> Effect:
    """Where the right code is rare, against the hard clip, on data 4 steps old."""
    method = arm(config(), steps=60, delay=4)
    hard = ObjectiveConfig(policy_args={"clip_high": 0.28})
    return Effect(
        claim="where the right token is rare, a scaled gradient past the clip learns faster",
        task=cipher(((12, 0.8), (6, 0.1)), (((2, 1), 1.0),)),
        method=method,
        ablation=dataclasses.replace(method, objective=hard),
        over="area",
        on_real_model=True,
    )
