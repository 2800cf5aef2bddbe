"""On-policy distillation: the model writes, and learns the teacher's distribution on what it wrote.

Paper: Agarwal et al. 2023, "On-Policy Distillation of Language Models" (GKD). The reverse KL of
whole distributions, at the tokens that the model sampled; no reward is needed. Prompts come from a
file, or from a task with `--task NAME`.

    jaxrl train distill_on_policy --data prompts.jsonl --model smollm2-135m --teacher TEACHER
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.extensions.teacher import TeacherConfig
from jaxrl.launch import algorithms
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig


def config() -> Config:
    """The recipe."""
    base = algorithms.load("grpo")
    return dataclasses.replace(
        base,
        recipe="distill_on_policy",
        extensions={"teacher": TeacherConfig(divergence="reverse")},
        objective=ObjectiveConfig(
            policy="sft", advantage_args={"baseline": "none", "scale": "none"}
        ),
        rollout=dataclasses.replace(base.rollout, prompts=64, group_size=1),
        optimizer=OptimizerConfig(learning_rate=1e-5),
    )
