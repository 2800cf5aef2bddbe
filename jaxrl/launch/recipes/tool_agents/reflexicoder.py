"""ReflexiCoder on sums in place of programs: answer, check, answer again, and be paid for the path.

Paper: Jiang et al. 2026, "ReflexiCoder: Teaching Large Language Models to Self-Reflect on Generated
Code and Self-Correct It via Reinforcement Learning"
Idea: an answer, a reflection on it, a corrected answer, and so on, in one generation. Training runs
every answer, so the reward sees the path: where an answer got better or worse, how many reflections
that took. At inference nothing is run.
Formula: `R = 1 + P(n) (Q / 2 + E)` of a chain with n reflections, 0 of another form;
`Q = s_n + 1/2 sum_t w_t m_t`, `E = s_n / n + (s_n - s_0) / max(1, n - 1)`
Claim: an 8B model above others of 1.5B to 14B on seven benchmarks of code, with 40% fewer tokens.
Reading: the reward, its weights and the KL penalty of 0.01 are those of the authors' code. An
attempt is a sum, right or wrong, and a reflection is one sign, in the task `revision`. The authors
begin from an instructed model, which knows the form; here a warm start shows it, with slips and
signs at random. This reward pays 3.75 for a wrong answer that is put right and 2.51 for one that
was right from the start, so it pays to be wrong at first: see `first` beside `correct`.
`--task-args.shaped false` pays for the form and the last answer alone.
Source: juyongjiang/ReflexiCoder@af90cb5c581edb94e8ef1dd3aec94cf5f02d76d7
rewards_code/reflection.py:251
Fidelity: verified against code
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(
    objective=ObjectiveConfig(aggregation="seq-mean-token-mean", kl_coef=0.01), needs=("task",)
)
EXAMPLE = Example(
    {
        "steps": 60,
        "task": "revision",
        "task_args": {"digits": 1, "slips": 0.5},
        "warm_start": {"steps": 300, "batch_size": 64, "learning_rate": 0.002},
        "rollout": {"max_new_tokens": 16, "turn_tokens": 0},
        "optimizer": {"learning_rate": 0.0005},
    },
    base="retrieval",
)
"""Sums of two digits, after a warm start with as many slips as right attempts."""
