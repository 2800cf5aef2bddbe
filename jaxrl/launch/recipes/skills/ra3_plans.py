"""RA3: mid-training finds plans before the lines of texts by EM, then RL goes on with them.

Paper: Zhang et al. 2025, "Learning to Reason as Action Abstractions with Scalable Mid-Training RL"
Idea: next-token prediction on expert texts leaves RL a space of single tokens to search. Let a
latent, a plan that holds for several lines, stand before a line. The E step trains plans by RL, for
how much they raise the likelihood of the text; the M step trains on the text with its plans.
Formula: `E_q[sum log p(x_t | z)] - KL(q(z_t) || p(z_t | z_(t-1)))`, p keeping the plan as a rule;
then GRPO
Claim: 4 points above next-token prediction and 8 above the base on HumanEval and MBPP; RLVR is
faster, and ends higher, on HumanEval+, MBPP+, LiveCodeBench and Codeforces.
Reading: read from the abstract and from accounts of it; details are ours. A plan is one token, and
one of them keeps the plan in force; the paper's are short texts. About half of the texts of a batch
are E steps, the others M steps, where the paper alternates. The toy's texts are worked sums.
The ablation is next-token prediction on the same texts, without plans. In the task `random plans`,
plans of demonstrations say nothing of the lines that are right.
Source: none found (no code was found; the abstract and reviews of the paper were read)
Fidelity: partial: plans of one token; details are ours
"""

from jaxrl.config import Domain
from jaxrl.extensions.latents import LatentsConfig
from jaxrl.launch import domain_plans
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

MID = 20
"""Steps of the mid-training."""

METHOD = Method(
    objective=ObjectiveConfig("chord", {"mu": 0.5}, advantage="sampled_advantages"),
    extensions={"latents": LatentsConfig()},
    by_domain=domain_plans.one_after_another((1 / 11,)),
    needs=(
        "solution",
        "domains",
    ),
)
EXAMPLE = Example(
    {
        "stages": {MID: {"domains.text.weight": 0.0, "domains.target.weight": 1.0}},
        "domains": {
            "text": Domain(
                "arithmetic", {"digits": 1, "terms": 4, "operators": "+", "worked": True}
            ),
            "target": Domain(
                "arithmetic", {"digits": 1, "terms": 4, "operators": "+", "worked": True}, 0.0
            ),
        },
        "rollout": {"max_new_tokens": 20},
    }
)
"""The quickstart's sums, of four terms, after mid-training on worked solutions."""
