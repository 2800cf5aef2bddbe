"""Warm-up, then RLVR, with solutions of a rule in place of a teacher's: a toy domain first.

Paper: Shrestha et al. 2025, "Warm Up Before You Train: Unlocking General Reasoning in
Resource-Constrained Settings"
Idea: where the target domain has few problems, imitate long traces of a toy domain first. What they
teach is how to reason, which serves the target; then RL on at most a hundred of its problems is
enough.
Formula: `-log pi(y*)` on the toy domain for some steps, then GRPO on the target
Claim: the warm-up alone improves MATH, HumanEval+ and MMLU-Pro; after it, RL on a hundred examples
beats the base model's, and other domains are kept.
Reading: traces are the toy task's own solutions; the paper's are a teacher's, on Knights and
Knaves. In the run, subtractions of one digit come before sums of two; the toy's warm start shows
both. In the effect, the toy domain shows that an answer has to be marked, and the target has 64
problems of other symbols. The ablation is RL on the target from the first step. In the control, all
demonstrations have the mark.
Source: safal312/warmup-before-you-train@c9c4a4281f5fb49ee763d43587434ca816065b93
train/sft_trainer.py:121; safal312/warmup-before-you-train@c9c4a4281f5fb49ee763d43587434ca816065b93
train/trl/trl/trainer/grpo_trainer.py:889;
safal312/warmup-before-you-train@c9c4a4281f5fb49ee763d43587434ca816065b93
train/trl/trl/trainer/grpo_trainer.py:980-987
Fidelity: partial: the task's own traces, not a teacher's; advantages are divided by deviations
"""

from jaxrl.config import CurriculumConfig, Domain
from jaxrl.extensions.guidance import GuidanceConfig
from jaxrl.launch import domain_plans
from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

WARMUP = 20

METHOD = Method(
    objective=ObjectiveConfig("expert_sft", advantage="sampled_advantages"),
    extensions={"guidance": GuidanceConfig("expert_rows")},
    stages={1 / 11: {"objective.policy": "ppo_clip"}},
    by_domain=domain_plans.one_after_another((1 / 11,)),
    needs=(
        "solution",
        "domains",
    ),
)
EXAMPLE = Example(
    {
        "stages": {WARMUP: {"domains.toy.weight": 0.0, "objective.policy": "ppo_clip"}},
        "domains": {
            "toy": Domain("arithmetic", {"digits": 1, "operators": "-"}),
            "target": Domain(
                "arithmetic",
                {"digits": 2, "operators": "+", "slips": 0.65},
                0.25,
                curriculum=CurriculumConfig("jaxrl.data.selection.curriculum:uniform", prompts=100),
            ),
        },
    }
)
"""The quickstart's sums, after 20 steps of imitation on subtractions."""
