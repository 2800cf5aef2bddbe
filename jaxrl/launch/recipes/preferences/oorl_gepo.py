"""OORL on one task's samples: GRPO, and GEPO on the samples that a verifier finds equivalent.

Paper: Wu et al. 2025, "On-Policy Optimization with Group Equivalent Preference for
Multi-Programming Language Understanding"
Idea: unit tests say that a translation is right, and no more. Answers to one question that mean the
same are preferred to those that do not, and are as good as each other: a preference between sets.
Formula: `L_GRPO + mean_(i in E, j not in E) -log sigmoid(s_i - s_j) + lambda var_(i in E) s_i`, `s
= beta log(pi / pi_ref)`, E the equivalent answers
Claim: higher than on-policy RL alone on code benchmarks of many languages.
Reading: the abstract has the two parts of GEPO in words; the variance as the second is ours. Groups
are the policy's own samples, of which those that pass are equivalent, in place of groups of
intermediate representations from elsewhere. Both weights are 1. The ablation is GRPO alone.
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(policy="oorl", aggregation="seq-mean-token-mean"))
EXAMPLE = Example()
"""The quickstart with preferences between the right and the wrong of a group."""
