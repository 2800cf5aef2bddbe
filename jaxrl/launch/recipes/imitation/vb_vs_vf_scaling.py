"""Verifier-based against verifier-free, with true verdicts: RL, and imitation of many kinds.

Paper: Setlur et al. 2025, "Scaling Test-Time Compute Without Verification or RL is Suboptimal"
Idea: experts solve a problem in many ways, short and long. A policy that imitates them must learn
all of their ways, and with few traces it learns none well; a policy that is told which of its own
traces earn more only has to find one.
Formula: `max E[r(x, y)]` against `max E[log pi(y*)]`; a trace earns 1 for each token after it has
come to its end
Claim: with equal data, verifier-based methods are ahead, by more with longer budgets and more data;
shown for 3B, 8B and 32B models.
Reading: RL has the true verdict, where the paper learns a verifier first. The task is the paper's
didactic one: write the codes of three symbols in this order, with anything between them, within a
budget. Both arms see one solution in each group, which the ablation imitates. One budget and one
amount of data: that the gap grows with them is not shown.
Source: none found (repositories and pages were searched by title; the abstract was read)
Fidelity: partial: the true verdict in place of a learned verifier; the formula is recalled
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart's GRPO, beside solutions that it leaves aside."""
