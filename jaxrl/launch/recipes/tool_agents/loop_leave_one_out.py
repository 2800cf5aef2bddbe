"""LOOP: PPO for agents with a leave-one-out baseline, one copy of the model and no critic.

Paper: Chen et al. 2025, "Reinforcement Learning for Long-Horizon Interactive LLM Agents"
Idea: several rollouts of a task, each against the mean of the others; PPO's clip allows several
updates on each batch; log-probabilities are recorded as they are sampled, so no copy of the old
policy is kept. The ratio is by token; tokens of the environment are masked.
Formula: `A_k = R_k - mean_(j != k) R_j`; `-min(r_t A, clip(r_t) A)` on the agent's tokens
Claim: a 32B agent beats OpenAI o1's on AppWorld by 9 points; it learns to read documentation.
Reading: as in the authors' code: the mean over the tokens of an episode, ratios between 1 / 1.1 and
1.1, advantages that are not scaled; `sparse` is their sparse reward. Episodes are those of `apps`,
symbols in the place of AppWorld's programs: documentation names the calls, calls change a state,
and tests judge the whole state. The policy begins from a short imitation, without adapters, and
makes 4 updates on a batch, in one pass, where theirs makes up to 16 in two; theirs computes old
log-probabilities anew before them. `--objective.policy ppo_turn` has ratios by turn, and
`ppo_trajectory` by trajectory. The lab's effect is on one task with turns of a token; its ablation
has ratios by trajectory, which the paper found worse.
Source: apple/ml-loop@6ade7b965182e12a23fa7855c191361db075bf40 phi_agents/rl/train.py:628-637;
apple/ml-loop@6ade7b965182e12a23fa7855c191361db075bf40 phi_agents/rl/train.py:804-817;
apple/ml-loop@6ade7b965182e12a23fa7855c191361db075bf40 phi_agents/rl/train.py:937-940
Fidelity: partial: 4 updates on a batch; episodes of advantages below 0.01 are not left out
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(
        policy_args={"clip_low": round(1 - 1 / 1.1, 4), "clip_high": 0.1},
        advantage="rloo",
        aggregation="seq-mean-token-mean",
    ),
    updates_per_batch=4,
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "steps": 60,
        "task": "apps",
        "task_args": {},
        "warm_start": {"steps": 80, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 80, "turn_tokens": 8},
        "optimizer": {"learning_rate": 0.0005},
        "packing": {"row_length": 96},
    },
    base="retrieval",
)
"""Changes in apps with LOOP's objective, four updates on each batch."""
