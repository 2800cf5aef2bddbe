"""Small experiments on the local machine: a tiny transformer, token tasks, many seeds at once.

    Effect(claim, task, method=arm(config()), ablation=Arm(...), statistic=..., better=...)

is one; `PROTOCOL.md` says how it is measured. `arms` says what an arm may do; `tasks`, `chains` and
`confidence` what there is to learn; `families` what a method is compared with; `statistics` what
the numbers say; `tuning` chooses settings, and `plans` says what was promised before results
existed. `stores` keeps the figures of arms, `measurement` makes the rows of a plan, `reruns` runs
its arms again, and `files` writes and commits all of them.
"""

from experiments.lab.arms import Arm, Sampled, arm, with_objective
from experiments.lab.effect import Effect, attempts, held_out, imitate, run, run_arm
from experiments.lab.tasks import (
    Problems,
    Splits,
    Task,
    cipher,
    graded,
    hard_prompts,
    lookup,
    neutral,
)

__all__ = [
    "Arm",
    "Effect",
    "Problems",
    "Sampled",
    "Splits",
    "Task",
    "arm",
    "attempts",
    "cipher",
    "graded",
    "hard_prompts",
    "held_out",
    "imitate",
    "lookup",
    "neutral",
    "run",
    "run_arm",
    "with_objective",
]
