"""GRAO: explore by samples, imitate the reference, and prefer the better of the two.

Paper: Wang et al. 2025, "Learning to Align, Aligning to Learn: A Unified Approach for
Self-Optimized Alignment"
Idea: the reference answer is scored in the group as the samples are. One loss reinforces samples by
their advantage, imitates the reference by its own, and raises each sample against the reference by
how much it is worth: a policy that outgrows its references leaves them.
Formula: `J = mean_i A_i log pi(o_i) + beta A_y log pi(y) + lambda mean_i A_i (log pi(o_i) - log
pi(y))`, `log pi` the mean over an answer's tokens, beta 0.5, lambda 0.6
Claim: 57.70%, 17.65%, 7.95% and 5.18% above SFT, DPO, PPO and GRPO.
Reading: as in the paper, whose objective has no ratio and no clip. Advantages are those of the
group with its reference, in units of its deviation.
Source: paper, equation 3
Fidelity: verified against equations
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(policy="grao", aggregation="seq-mean-token-mean"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with a reference beside each group."""
