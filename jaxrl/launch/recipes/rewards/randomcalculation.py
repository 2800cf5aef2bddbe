"""RandomCalculation's reward against wrong ones, on clean problems and on a leaked benchmark.

Paper: Wu et al. 2025, "Reasoning or Memorization? Unreliable Results of Reinforcement Learning Due
to Data Contamination"
Idea: random and inverted rewards seemed to improve models on benchmarks that had leaked into their
pretraining. Fresh expressions of any length are clean, and there the truth of the reward decides.
Formula: `r = 1 - min(|a - b|, 1) / 2 - min(|a - b| / (|b| + eps), 1) / 2`
Claim: on clean problems true rewards improve steadily, noisy and wrong ones do not.
Reading: answers are asked for to two decimals, and expressions have whole numbers, where the paper
also has fractions, squares and cubes, and up to 20 operations. The ablation rewards by chance;
beside it the reward is inverted, or turned around for a fifth of the answers. On the task
`contaminated`, demonstrations hold a benchmark with its answers, the RL trains on other problems,
and the statistic is the score on the benchmark. Rewards by chance did not raise it, with one update
a batch, where no clip binds: its mean over 42 seeds was 0.872 before the RL and 0.804 after.
Source: paper, equation 2
Fidelity: verified against equations
"""

from jaxrl.launch.method import Example, Method

METHOD = Method(rewards=("nearness",), needs=("answer",))
EXAMPLE = Example(
    {
        "task": "random_calculation",
        "task_args": {"largest": 9, "answer_format": "text", "template": "{question}="},
        "rollout": {"max_new_tokens": 10},
    }
)
"""The quickstart on expressions of two operations."""
