"""POPE: some samples of a hard prompt continue from the shortest oracle prefix that helps.

Paper: Qu et al. 2026, "POPE: Learning to Reason on Hard Problems via Privileged On-Policy
Exploration"
Idea: the oracle's solution is never a target, only a place to explore from. Where no sample of a
group passes, half of it tries again from longer and longer prefixes until one does; guided and
unguided samples then train side by side.
Formula: `y_i ~ pi(. | x, h)` for guided rows, `h` the shortest prefix with a success; no gradient
on `h`
Claim: more hard problems become solvable, unguided too, than by entropy bonus, clip-higher or
pass@k objectives.
Reading: prefixes of a quarter, half and three quarters of the solution; guided and unguided rows
share their group's baseline; no instruction says that this is a prefix. The ablation tries again
as often, without a prefix. Beside it stand what the claim names, without second attempts: an
entropy bonus of 0.01, clip-higher of 0.28 and the objective of pass@4.
"""

import dataclasses
from collections.abc import Callable

from experiments.lab import Arm, Effect, arm, hard_prompts
from jaxrl.config import Config
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.recipes import quickstart
from jaxrl.training.objective import ObjectiveConfig


def config() -> Config:
    """The quickstart with half of each failed group guided."""
    return dataclasses.replace(
        quickstart.config(),
        recipe="pope",
        extensions={"guidance": GuidanceConfig("escalate", {"rows": 4})},
    )


def effect() -> Effect:
    """Second attempts from a prefix against second attempts from nothing."""
    method = arm(config(), steps=60)
    others = {
        "clip-higher": ObjectiveConfig(policy_args={"clip_high": 0.28}),
        "entropy bonus": ObjectiveConfig(entropy_coef=0.01),
        "pass@k": ObjectiveConfig(advantage="pass_at_k", advantage_args={"k": 4}),
    }
    plain = dataclasses.replace(config().extensions["guidance"], args={"rows": 4, "help": 0.0})
    return Effect(
        claim="guided exploration solves prompts that more samples do not",
        task=hard_prompts(),
        method=method,
        ablation=dataclasses.replace(method, guidance=plain),
        statistic="pass@1/1",
        further={name: unguided(change) for name, change in others.items()},
    )


def unguided(objective: ObjectiveConfig) -> Callable[[Arm], Arm]:
    """The method without its guide, by another objective."""
    return lambda method: dataclasses.replace(method, guidance=None, objective=objective)
