"""DR-IRL's GRPO-S, under given rewards: advantages grow where the policy is far from what is shown.

Paper: Cheng et al. 2025, "Inverse Reinforcement Learning with Dynamic Reward Scaling for LLM
Alignment"
Idea: demonstrations over-represent common cases. Scale what is learned from a prompt by how hard it
is: how unlike the samples are to the demonstration, and how far their rewards are below its own.
Formula: `A_i = 2 sigmoid(a (h - mean h)) 2 sigmoid(b (d - mean d)) A_i^GRPO`, h the distance of the
texts, d that of the rewards
Claim: best of all baselines in safety, with usefulness kept.
Reading: the formula is ours. Accounts of the paper multiply advantages by two factors too, but by
`sigmoid(h_i) / sigmoid(mean h)` of each sample and, of the prompt, `sigmoid(d') / sigmoid(mean d)`,
d' the mean d of its samples without outliers. Texts are compared as bags of tokens. Rewards are the
verifier's, in place of models learned by inverse RL for each category. The effect looks at the rare
category. The ablation has no factor.
Source: none found (repositories and pages were searched by title; accounts of the paper were read)
Fidelity: own formula
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(advantage="grpo_s"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart with a demonstration beside each group, to measure distances from."""
