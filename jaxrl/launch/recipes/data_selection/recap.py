"""RECAP by shares of prompts: less of what improves already, more of what lags or wavers.

Paper: "Beyond Reasoning Gains: Mitigating General Capabilities Forgetting in Large Reasoning
Models", 2025
Idea: RL on reasoning forgets other capabilities, so their data comes back in every batch. Fixed
weights waste it on what is saturated; signals over a short horizon, of convergence and of
instability, move the weights to what lags behind or wavers, without any model more.
Formula: `w = K softmax(s / T)`, `s = late / early + std / (late + early)`, of the K objectives'
losses over a window, T 5
Claim: general capabilities are kept and reasoning improves on Qwen2.5-VL of 3B and 7B.
Reading: each domain has one objective, whose loss is 1 less its reward. Weights are shares of the
prompts, in place of factors of the losses: the gradient is the same on average, and its variance is
not. The window is of completions, in place of steps, so that the deviation is of single rewards.
The equation is read from a digest of the paper.
Source: paper, equation 1
Fidelity: partial: shares of prompts in place of factors of losses
"""

from jaxrl.config import BanditConfig, Domain
from jaxrl.launch.method import Example, Method

METHOD = Method(
    bandit=BanditConfig("recap", {"temperature": 5.0}, signal="reward"), needs=("domains",)
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
