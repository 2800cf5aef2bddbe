"""AEPO with a rollout in rounds: past the clip, gradients are scaled and not cut.

Paper: Dong et al. 2025, "Agentic Entropy-Balanced Policy Optimization"
Idea: the tokens that open new ways are unlikely ones, whose ratio moves fast and meets the upper
clip first. Past it their gradient is scaled, not cut; and the advantage of a token grows with the
entropy it was drawn from. The rollout monitors a first row: the surer the policy is after results
of tools, the more rows begin anew, and the others branch where entropy rises after a result, less
so right after another branch.
Formula: `-(1 + e) / sg(r) r A'` where `A > 0` and `r > 1 + e`, PPO's clip elsewhere;
`A' = A (1 + alpha H_t / max_t H)`; `k sigmoid(beta (H_root - H_tool))` of k rows begin anew; a
branch has `P = (p + w (H_t - H_root)) (1 - c l)`
Claim: beats seven RL algorithms on 14 agent data sets; GAIA 47.6 with 1,000 samples.
Reading: formulas recalled, constants ours; the authors' code for ARPO gave how rows are filled up
and entropies are normalised, and their code for AEPO was not found. Branches are drawn turn by
turn, from fresh rows and from branches, after the row that they leave has ended. `config()` is of
one turn, for the real model of the effects; the rollout is `--with branching`, on episodes: `jaxrl
train retrieval --with branching --objective.policy aepo`, where `--branching.fresh 0.5
--branching.penalty 0` branches as ARPO does. The lab's effect is of the loss alone; its ablation is
DAPO's clip at the same widths.
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
