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

from jaxrl.config import BanditConfig, Domain
from jaxrl.launch.method import Example, Method

METHOD = Method(
    bandit=BanditConfig("recap", {"temperature": 1.0}, signal="reward"), needs=("domains",)
)
EXAMPLE = Example(
    {
        "domains": {
            "known": Domain("arithmetic", {"digits": 1, **{"operators": "+"}}),
            "known too": Domain("arithmetic", {"digits": 1, "operators": "-"}),
            "new": Domain("arithmetic", {"digits": 2, "slips": 0.65, **{"operators": "+"}}),
        }
    }
)
"""The quickstart's sums, beside easier ones that it can do."""
