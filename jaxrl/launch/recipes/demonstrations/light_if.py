"""Light-IF from its cold start on: Entropy-SFT, then RL with an entropy bonus by token.

Paper: Wang et al. 2025, "Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and
Self-Checking for Complex Instruction Following"
Idea: supervised fine-tuning takes the entropy that RL needs. So imitate only the tokens that are
wrong rather than unsure, and in RL give the tokens whose update costs most entropy a bonus. Rewards
are the share of constraints that are met.
Formula: SFT on the share of tokens with the largest `ce_t - c H_t`; then `L_GRPO - min(alpha
softmax_row(cov)_t, 5) H_t`, `cov_t = (A_t - mean A) (log pi_t - mean log pi)`
Claim: the 32B model is above DeepSeek-R1 and Doubao-1.6 on instruction following.
Reading: formulas, c = 1 and the share of 0.2 are those of the authors' code. Its alpha of 10 is
divided among some thousand tokens of a response; answers here have a few, and alpha is 0.02.
Zero-RL that finds the thinking patterns, and the filter of prompts, are left out: solutions are the
task's. The ablation is plain SFT and GRPO in the same phases.
Source: Qihoo360/Light-IF@01e90034af6a289de5b7d32210b6f57e98413db0
rl/verl/verl/trainer/ppo/core_algos.py:890
Fidelity: partial: alpha is of short answers; no Zero-RL and no filter of prompts
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

COLD_START = 20
"""Steps of imitation, of 220."""

METHOD = Method(
    objective=ObjectiveConfig("expert_entropy_sft", advantage="sampled_advantages"),
    stages={COLD_START / 220: {"objective.policy": "tea", "objective.policy_args.alpha": 0.02}},
    extensions={"guidance": GuidanceConfig("expert_rows")},
    needs=("solution",),
)
EXAMPLE = Example()
"""The quickstart after a cold start that keeps the entropy."""
