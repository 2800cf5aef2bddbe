"""RLCR: the answer comes with a confidence, and a proper scoring rule makes it honest.

Paper: Damani et al. 2025, "Beyond Binary Rewards: Training LMs to Reason About Their Uncertainty"
Idea: a reward for being right pays for guesses and says nothing of doubt. Let the model state how
sure it is, and take the Brier score of that off the reward. A bounded proper scoring rule leaves
the best answer the best, and makes the true chance of being right the best thing to state.
Formula: `r = 1[right] - (q - 1[right])^2`
Claim: calibration much better in and out of domain at no loss of accuracy; plain RL hurts it.
Reading: no confidence, or none that can be read, earns -1. The ablation rewards the answer alone,
in the same form. Some answers cannot be known; in the task `own errors`, all can.
Source: damanimehul/RLCR@8904bedf1af827e0a1bcc3c907bf505d88540bd2 reward_fns.py:88
Fidelity: partial: no reward for the form, whose tags may stand in any order
"""

from jaxrl.launch.method import Example, Method

ASKS = "\nAfter the answer, state how sure you are of it, as in <confidence>0.8</confidence>."

METHOD = Method(wrapper="calibrated", wrapper_args={"asks": ASKS}, needs=("answer",))
EXAMPLE = Example(
    {
        "wrapper": "",
        "wrapper_args": {},
        "task": "calibrated",
        "task_args": {"of": "arithmetic", "args": '{"digits": 2, "operators": "+", "slips": 0.65}'},
        "rollout": {"max_new_tokens": 40},
    }
)
"""The quickstart's sums, with a confidence after each."""
