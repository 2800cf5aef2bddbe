"""After RECAP, with a formula of our own: shares of known and new data follow their rewards.

Paper: "Beyond Reasoning Gains: Mitigating General Capabilities Forgetting in Large Reasoning
Models", 2025
Idea: RL on reasoning forgets other capabilities, so their data comes back in every batch. Fixed
weights waste it on what is saturated; signals over a short horizon, of convergence and of
instability, move the weights to what lags behind or wavers, without any model more.
Formula: `w = softmax((|late - early| / early + std / mean) / T)`, of each objective's rewards over
a window
Claim: general capabilities are kept and reasoning improves on Qwen2.5-VL of 3B and 7B.
Reading: the abstract names the signals and the formula is ours. Weights are shares of the prompts,
not factors of losses. The ablation replays with even shares, and beside it nothing is replayed.
"""

import dataclasses

from experiments.lab import Arm, Effect, arm, cipher
from jaxrl.config import BanditConfig, Config, Domain
from jaxrl.launch.recipes import quickstart


def config() -> Config:
    """The quickstart's sums, beside easier ones that it can do."""
    args = {"operators": "+"}
    return dataclasses.replace(
        quickstart.config(),
        recipe="recap",
        domains={
            "known": Domain("arithmetic", {"digits": 1, **args}),
            "known too": Domain("arithmetic", {"digits": 1, "operators": "-"}),
            "new": Domain("arithmetic", {"digits": 2, "slips": 0.65, **args}),
        },
        bandit=BanditConfig("recap", {"temperature": 1.0}, signal="reward"),
    )


def effect() -> Effect:
    """Two domains that the policy knows and a new one, with moving shares and with even ones."""
    method = arm(config(), steps=80, weights=(1.0,) * 3)
    skills, mix = ((24, 0.9), (24, 0.9), (24, 0.3)), ((2, 0, 0), (0, 2, 0), (0, 0, 2))
    return Effect(
        claim="shares that follow convergence and instability do better over all domains than even",
        task=cipher(skills, tuple((counts, 1.0) for counts in mix)),
        method=method,
        ablation=dataclasses.replace(method, bandit=BanditConfig()),
        further={"no replay": new_alone},
        over="area",
    )


def new_alone(method: Arm) -> Arm:
    """The method on the new domain alone."""
    return dataclasses.replace(method, bandit=BanditConfig(), weights=(0.0, 0.0, 1.0))
