"""RLPR: no verifier; the reward is how probable the policy finds the reference after reasoning.

Paper: Yu et al. 2025, "RLPR: Extrapolating RLVR to General Domains without Verifiers"
Idea: answers of general domains have no verifier, but the policy itself says how well its reasoning
leads to the reference answer: put that in the place of its own and take the mean probability of its
tokens, less what it is without reasoning. A product over tokens would hang on the worst of them.
Formula: `r = clip(mean_t p(y*_t | x, z, y*_<t) - mean_t p(y*_t | x, y*_<t), 0, 1)`, and only
prompts whose rewards differ enough
Claim: 7.6 points above VeriFree on TheoremQA and 7.5 on Minerva, in three families of models.
Reading: the filter's threshold is half the batch's own mean deviation, not half of an average over
steps, and dropped prompts are not made up for. The authors' code adds a tenth for the format and
takes off for repetition, and its upper clip is 0.27; these are left out. The ablation takes the
likelihood of the whole reference, as VeriFree does. In the control, a reference has one phrase, so
that its likelihood says as much. A first look, at a rate of 1e-3, spread from 0.00 to 0.48 over
seeds: -0.012 [-0.265, +0.241].
Source: OpenBMB/RLPR@8490fca326c625a1697a09ac1a1476a4f6f76325
verl/workers/reward_manager/prob.py:310; paper, equations 2 and 4
Fidelity: partial: the filter's threshold is of the batch; no reward for format, none for repetition
"""

from jaxrl.extensions.policy_reward import PolicyRewardConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(rows="spread"),
    extensions={"policy_reward": PolicyRewardConfig(marker="=")},
)
EXAMPLE = Example(
    {
        "task_args": {"digits": 1, "terms": 4, "operators": "+", "worked": True, "slips": 0.65},
        "rollout": {"max_new_tokens": 24},
    }
)
"""Sums of four digits, worked out; what follows the last `=` is the answer."""
