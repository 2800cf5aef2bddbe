"""MGPO, the RL stage alone: GRPO with each prompt weighted by how undecided it is.

Paper: Xu et al. 2025, "Tiny Model, Big Logic: Diversity-Driven Optimization Elicits Large-Model
Reasoning Ability in VibeThinker-1.5B"
Idea: a prompt passed half the time is where there is most to learn. Weigh its advantages by the
exponential of how far its pass rate lies from one half, in relative entropy.
Formula: `A' = exp(-lambda D(p, 1/2)) A`, `D = p log 2p + (1 - p) log 2(1 - p)`
Claim: a model of 1.5B trained for 7,800 dollars scores 80.3 on AIME24.
Reading: lambda is 4, which the report leaves open; it takes the mean over each response's tokens
first, here all tokens count alike. The first stage, which picks supervised checkpoints by pass@k
and merges them, is not here. The ablation is lambda = 0, which is GRPO.
Source: paper, section 3.4
Fidelity: partial: the second stage alone, with a mean over all tokens
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(advantage="mgpo", advantage_args={"strength": 4.0}))
EXAMPLE = Example()
"""The quickstart with MGPO's advantage."""
