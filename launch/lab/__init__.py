"""Small experiments on the machine at hand: a tiny transformer, token tasks, many seeds at once.

    Effect(claim, task, method=arm(config()), ablation=Arm(...), statistic=..., better=...)

is one; `run` carries it out. `arms` says what an arm may do; `tasks`, `chains` and `confidence`
what there is to learn.
"""

from jaxrl.launch.lab.arms import Arm, Sampled, arm
from jaxrl.launch.lab.effect import Effect, attempts, held_out, imitate, run
from jaxrl.launch.lab.tasks import Problems, Task, cipher, graded, hard_prompts, lookup

__all__ = [
    "Arm",
    "Effect",
    "Problems",
    "Sampled",
    "Task",
    "arm",
    "attempts",
    "cipher",
    "graded",
    "hard_prompts",
    "held_out",
    "imitate",
    "lookup",
    "run",
]
