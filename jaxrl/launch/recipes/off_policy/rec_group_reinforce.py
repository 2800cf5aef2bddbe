"""REC: group REINFORCE on anybody's data, with the clip as regulariser and no importance weight.

Paper: Yao et al. 2025, "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm: Demystifying
Some Myths About GRPO and Its Friends"
Idea: `(r - mean r) grad log pi` follows from a KL-regularised surrogate whatever policy sampled.
What stale data need is then a bound on the update, which the clip is, and not a weight: drop a
token once its ratio has left the interval in the direction of its advantage.
Formula: `-M_t A log pi_t`, `M_t = 0` if `A > 0` and `r_t > 1 + e`, or `A < 0` and `r_t < 1 - e`
Claim: unifies OPMD and AsymRE; importance weights are not essential, regularisation is.
Reading: the one-sided form; `jaxrl.losses.policy.surrogates` has the others, RED-Weight and
RED-Drop.
Source: agentscope-ai/Trinity-RFT@1d7fae4a63f5e3a30e1927559d28a348a2167dd6
trinity/algorithm/policy_loss_fn/rec_policy_loss.py:12
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

NAME = "rec_group_reinforce"

METHOD = Method(
    objective=ObjectiveConfig(
        policy="rec", advantage_args={"scale": "none"}, aggregation="token-mean"
    ),
    updates_per_batch=4,
)
EXAMPLE = Example()
"""The quickstart with REC's objective, four updates on each batch."""
