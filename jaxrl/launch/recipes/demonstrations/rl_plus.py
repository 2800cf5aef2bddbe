"""RL-PLUS without its two unclipped updates: solutions from outside, weighted to explore.

Paper: Dong et al. 2025, "RL-PLUS: Countering Capability Boundary Collapse of LLMs in Reinforcement
Learning with Hybrid-policy Optimization"
Idea: a solution joins each group. Who wrote it is unknown, so its policy is estimated by the mean
of the old policy and a uniform one, and mixed with the old policy in the ratio's denominator: no
weight explodes or vanishes. Right tokens that the policy finds unlikely get most of the credit.
Formula: `r = 2 pi / (pi_w + pi_old)`, `pi_w = (pi_old + 1) / 2`, `A_t = A (1 - sg(pi))^(1/2)`
Claim: the boundary of what can be solved (pass@k) grows where RLVR narrows it.
Reading: the constants are the released code's: 1 in place of the paper's `1 / V`, an exponent of
1/2, advantages without the standard deviation, sums over tokens. As there, a solution's advantage
is that of its group, itself included. Its entropy bonus of 0.001 is left out, and its two updates
on each batch without a clip. The ablation samples beside the same solutions and learns nothing
from them.
Source: YihongDong/RL-PLUS@eb4aa4d4e2d7ce206056f9d7740138bfc94fad8f
rl_plus/verl/verl/recipe/rlplus_core_alg.py:69
Fidelity: verified against code
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="rl_plus", advantage_args={"scale": "none"}, aggregation="seq-mean-token-sum-norm"
    ),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with a solution in each group."""
