"""How much backtracking: priming traces that go back more often, then the same RL.

Paper: Cai et al. 2025, "How Much Backtracking is Enough? Exploring the Interplay of SFT and RL in
Enhancing LLM Reasoning"
Idea: supervised fine-tuning before RL sets how much a model searches. Write traces by a solver with
a given number of steps back, fine-tune on those, and see what the same RL makes of each.
Formula: `-log pi(trace)` for some steps, traces with k steps back; then GRPO
Claim: more steps back give better and steadier RL, and harder tasks need more; whether long traces
are right hardly matters.
Reading: `config()` is Countdown with three wrong attempts before each solution. In the effect,
dials are set by trying; traces go back three times, and once in the ablation. Both end right, and
both may go back as often in RL. In the authors' Countdown, a wrong path leaves the solution at a
random step and goes back to that step; here each attempt is a new one. In the task
`likely settings`, first guesses are right more often.
Source: jchy20/how-much-backtrack@df310b4fe7e55a49f2221992117f09466e11a886 rl-scripts/grpo.sh:2;
jchy20/how-much-backtrack@df310b4fe7e55a49f2221992117f09466e11a886
reasoning-gym/reasoning_gym/games/countdown.py:21-85;
jchy20/how-much-backtrack@df310b4fe7e55a49f2221992117f09466e11a886
verl/utils/reward_score/countdown.py:86
Fidelity: partial: attempts are whole and random; no reward of 0.1 for the form alone
"""

from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig("expert_sft", advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    stages={2 / 11: {"objective.policy": "ppo_clip"}},
    needs=("solution",),
)
EXAMPLE = Example(
    {
        "task": "countdown",
        "task_args": {"numbers": 3, "largest": 9, "operators": "+-", "backtracks": 3},
        "rollout": {"max_prompt_tokens": 256, "max_new_tokens": 224},
        "packing": {"micro_batch_tokens": 4096, "row_length": 1024},
    }
)
"""Countdown with three small numbers, after 40 steps on traces that go back three times."""
