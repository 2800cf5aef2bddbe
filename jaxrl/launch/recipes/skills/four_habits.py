"""Four habits, one of them: a policy that has seen backtracking improves itself by RL.

Paper: Gandhi et al. 2025, "Cognitive Behaviors that Enable Self-Improving Reasoners, or, Four
Habits of Highly Effective STaRs"
Idea: equal RL lets one model improve and another not. What differs are habits in what they write:
verification, backtracking, subgoals, backward chaining. Fine-tune on traces with a habit, and the
model improves too, even if the traces end wrong.
Formula: `-log pi(trace)` for some steps, then GRPO
Claim: a primed Llama-3.2-3B matches Qwen-2.5-3B under the same RL; wrong solutions with the right
habits prime as well as right ones.
Reading: backtracking alone. `config()` is Countdown, whose solutions go back twice before they end
(`backtracks`; with `sound` false they end wrong), after which GRPO has the verifier. The toy's warm
start imitates these traces, too. In the effect, dials are set by trying, and traces end right: that
wrong ones do as well is not tried. The ablation is primed by right solutions of the same length
that wait where the others go back. The authors' traces are a language model's. In the task
`likely settings`, first guesses are right more often, so that there is less to go back for.
Source: kanishkg/cognitive-behaviors@9c90d333c6e3b5eafe801cb4cadd5ee973cc8291 scripts/sft.sh:12;
kanishkg/cognitive-behaviors@9c90d333c6e3b5eafe801cb4cadd5ee973cc8291
verl/trainer/config/ppo_trainer.yaml:141
Fidelity: partial: backtracking alone; GRPO in place of PPO with a critic and a KL term
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
        "task_args": {"numbers": 3, "largest": 9, "operators": "+-", "backtracks": 2},
        "rollout": {"max_prompt_tokens": 256, "max_new_tokens": 224},
        "packing": {"micro_batch_tokens": 4096, "row_length": 1024},
    }
)
"""Countdown with three small numbers, after 40 steps on traces that go back."""
