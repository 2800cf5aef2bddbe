"""GUIMid in text alone: mid-training on tasks with much data, then a few target trajectories.

Paper: Zhang et al. 2025, "Breaking the Data Barrier -- Building GUI Agents Through Task
Generalization"
Idea: trajectories of agents are rare, but text that takes the same reasoning is not. So put a stage
of fine-tuning on tasks with much data, such as mathematics and code, before the trajectories, and
some of these into that stage, so that the change is smooth. What is learned there carries over.
Formula: `-log pi(y)` on a mixture of tasks and some trajectories, then on the trajectories alone
Claim: text-only mathematics gives 5.6 points on WebArena and 5.4 on AndroidWorld, the best mixture
8.0 and 12.2, over the trajectories alone; perception of screens helps little.
Reading: code of the training is not published. A first half of the steps and a fifth of it for the
trajectories are ours. Images are left out, and so is perception. In the run, the target is worked
sums of four terms. In the effect, it is 48 ways through places; arithmetic and logic are worked out
alike, with other symbols. The ablation has the trajectories throughout, so it sees more of them.
One mixture: what each task is worth alone is not measured. The task `many trajectories` has 512.
Source: none found (hkust-nlp/GUIMid has data and no code for training; the abstract was read)
Fidelity: partial: texts in place of screens; shares of the stages are ours
"""

from jaxrl.config import CurriculumConfig, Domain, WarmStartConfig
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import domain_plans
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

MID = 0.5
"""Share of the steps that the first stage takes."""
MIXTURE, TARGET = (0.4, 0.4, 0.2), (0.0, 0.0, 1.0)
"""Weights of the domains in the two stages."""

METHOD = Method(
    objective=ObjectiveConfig("chord", {"mu": 1.0}, advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    rollout={"prompts": 96, "group_size": 2},
    by_domain=domain_plans.raise_last(MIXTURE[-1], TARGET[-1], MID),
    needs=(
        "solution",
        "domains",
    ),
)
EXAMPLE = Example(
    {
        "stages": {
            110: {
                "domains.sums.weight": 0.0,
                "domains.differences.weight": 0.0,
                "domains.target.weight": 1.0,
            }
        },
        "domains": {
            "sums": Domain("arithmetic", {"digits": 2, "operators": "+"}, MIXTURE[0]),
            "differences": Domain(
                "arithmetic",
                {"digits": 1, "terms": 3, "operators": "-", "worked": True},
                MIXTURE[1],
            ),
            "target": Domain(
                "arithmetic",
                {"digits": 1, "terms": 4, "operators": "+", "worked": True},
                MIXTURE[2],
                curriculum=CurriculumConfig("jaxrl.data.selection.curriculum:uniform", prompts=100),
            ),
        },
        "warm_start": WarmStartConfig(),
        "rollout": {"max_new_tokens": 20},
    }
)
"""Sums and differences, then sums of four terms, of which there are a hundred."""
