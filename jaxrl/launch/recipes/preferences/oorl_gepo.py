"""OORL on one task's samples: REINFORCE++, and GEPO on those that a verifier finds equivalent.

Paper: Wu et al. 2025, "On-Policy Optimization with Group Equivalent Preference for
Multi-Programming Language Understanding"
Idea: unit tests say that a translation is right, and no more. Answers to one question that mean the
same are preferred to those that do not, and are as good as each other: a preference between sets.
Formula: `L_RL + w (-log sigmoid(mean_(i in E) s_i - mean_(j not in E) s_j) + lambda var_(i in E)
s_i)`, `s = beta log(pi / pi_ref)`, E the equivalent answers, w 0.01, lambda 1
Claim: higher than on-policy RL alone on code benchmarks of many languages.
Reading: groups are the policy's own samples, of which those that pass are equivalent, in place of
groups of compilers' intermediate representations. beta is 0.1, which the text that was read does
not give, nor whether the variance is of the scaled rewards, as here. The policy's loss is a mean
over answers. The ablation is REINFORCE++ alone.
Source: paper, sections 3.2 and 3.3
Fidelity: partial: own samples in place of given groups
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy="oorl", advantage="reinforce_pp", aggregation="seq-mean-token-mean"
    )
)
EXAMPLE = Example()
"""The quickstart with preferences between the right and the wrong of a group."""
