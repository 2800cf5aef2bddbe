"""AI-SearchPlanner, its formulas recalled: a small policy searches, and a frozen model answers.

Paper: Mei et al. 2025, "AI-SearchPlanner: Modular Agentic Search via Pareto-Optimal Multi-Objective
Reinforcement Learning"
Idea: to search and to answer are two abilities. A small planner is trained to search; a large
frozen model answers from what was found. The planner is paid for what its plan gains over no plan,
for a sensible course, and for searches that it saves; the weight of the last traces a Pareto front.
Formula: `R = (score - score without a plan) + R_process + alpha (1 - T / T_max)`
Claim: above agents that search and answer in one model, in accuracy and in searches; the planner
serves other frozen models too.
Reading: the abstract and the parts of the reward are the authors'; their scales are ours, and the
formulas recalled. By accounts of the paper, the frozen model judges the course. The frozen model is
a program that follows facts, in the task `planning`; it knows half of the facts by itself, and
which is for the planner to find out. A judge of the course is replaced by a rule: a search is
sensible if it asks for a name that was seen and not yet searched for. PPO without a KL term, gamma
and lambda of 1; the policy begins from nothing. `--task-args.frozen false` has the policy answer
itself.
Source: none found (no code was found; the abstract, reviews and a survey of the paper were read)
Fidelity: partial: scales are ours, formulas recalled
"""

from jaxrl.extensions.critic import CriticConfig
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig

METHOD = Method(
    objective=ObjectiveConfig(entropy_coef=0.03),
    extensions={
        "critic": CriticConfig(
            optimizer=OptimizerConfig(learning_rate=0.002), mixing=1.0, bootstrap=False
        )
    },
    needs=("environment",),
)
EXAMPLE = Example(
    {
        "task": "planning",
        "task_args": {"hops": 2, "searches": 4, "famous": 0.5, "cost": 0.1, "process": 0.2},
        "rollout": {"max_new_tokens": 32},
    },
    base="retrieval",
)
"""Two hops, up to four searches, a frozen model that knows half of the facts."""
