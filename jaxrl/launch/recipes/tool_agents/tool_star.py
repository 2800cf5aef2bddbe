"""Tool-Star without its data pipeline, tools in symbols: a bonus for several tools, and DPO.

Paper: Dong et al. 2025, "Tool-Star: Empowering LLM-Brained Multi-Tool Reasoner via Reinforcement
Learning"
Idea: an agent with several tools should use them together where that helps. A cold start shows the
form of calls; GRPO follows, whose reward is hierarchical: form first, then the answer, then a bonus
for a right answer that took several tools. Between its phases the policy learns from pairs of its
own rollouts, of which the same reward is the critic.
Formula: `R = -1` malformed, `0` wrong, `acc` right, `acc + 0.1` right with every tool; `L_GRPO`,
then for some steps `-log sigmoid(beta (d_w - d_l))`, `d = log(pi / pi_ref)`
Claim: effective and efficient on more than ten benchmarks of computation and knowledge.
Reading: the reward is that of the authors' code, where the tools are a search engine and Python.
Here they are a ledger and a calculator, in the task `ledger`; answers are numbers. A pair is a
prompt's best and worst rollout, every 20 steps for 5, with the policy before them as reference; the
authors do DPO once, after RL, with beta of 0.1 and adapters. The cold start imitates the task's own
episodes, in place of synthesised ones sorted by difficulty; the tools that help at inference are
not here.
Source: dongguanting/Tool-Star@d12222c7e54a63a5c0a266eb72170e4f22c526ef
Tool_Star_RL/src/verl/verl/utils/reward_score/re_search.py:248;
dongguanting/Tool-Star@d12222c7e54a63a5c0a266eb72170e4f22c526ef
LLaMA-Factory-main/examples/train_lora/qwen_lora_dpo_2.yaml:11
Fidelity: partial: DPO between phases of RL in place of after it
"""

from jaxrl.extensions.reference_refresh import RefreshConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

PERIOD = 20

METHOD = Method(
    objective=ObjectiveConfig(aggregation="seq-mean-token-mean"),
    stages={
        PERIOD: {"objective.policy": "online_dpo", "period": PERIOD},
        PERIOD + 5: {"objective.policy": "ppo_clip", "period": PERIOD},
    },
    extensions={"reference_refresh": RefreshConfig(every=PERIOD)},
    updates_per_batch=1,
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "steps": 60,
        "task": "ledger",
        "task_args": {
            "digits": 2,
            "terms": 2,
            "names": 4,
            "calls": 5,
            "bonus": 0.1,
            "malformed": -1.0,
        },
        "warm_start": {"steps": 100, "batch_size": 32, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 64, "turn_tokens": 8},
        "optimizer": {"learning_rate": 0.0004},
        "packing": {"row_length": 96},
    },
    base="retrieval",
)
"""The recipe `verltool` with the hierarchical reward and five steps of pairs in every 20."""
