"""PF-PPO's best-worst filter, without a critic: train on what the reward ranks first and last.

Paper: Shen & Zhang 2024, "Policy Filtration in RLHF to Fine-Tune LLM for Code Generation"
Idea: a reward model is most reliable at the ends of its range. Sample more than is trained on, rank
each prompt's samples by reward, and keep the best and the worst.
Formula: PPO on `{i : rank_i = 1 or rank_i = N}` of each prompt's N samples
Claim: state of the art for 7B on HumanEval, MBPP and LeetCode contests; best-worst and best-random
are the strong filters.
Reading: best-worst, one each of 8, with the group's baseline, of all 8, in place of a critic. Both
are kept, where the authors draw from them at equal weights; the choice of the filter by R^2 on
labelled prompts is left out. The ablation trains on all samples.
Source: swtheing/PF-PPO-RLHF@6b93abf92dcb417c21cac1e07d176455351e5563
openrlhf/trainer/ppo_utils/replay_buffer.py:190-200; paper, section 4
Fidelity: partial: a group's baseline in place of a critic; both are kept, not drawn
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(rows="best_worst"))
EXAMPLE = Example()
"""The quickstart on the best and the worst of each group."""
