"""Rubicon's aggregation of rubrics by rule: no judge, no bank of rubrics, one stage of training.

Paper: Huang et al. 2025, "Reinforcement Learning with Rubric Anchors"
Idea: a weighted sum of criteria is hacked where one of them is easy to push. Let a critical
criterion veto the rest, let each saturate, let a criterion be worth more beside another, and
stretch the upper range, where good answers differ. Train on the prompts of the central quantiles.
Formula: `0 where a critical mark is too low, else ((sum_k w_k m_k + sum_(j, k) w_jk m_j m_k) /
sum of w)^stretch`, `m = min(mark, saturation) / saturation`
Claim: 5.2% on open-ended benchmarks with 5K samples, and 2.4% above DeepSeek-V3.
Reading: the paper has the four devices in words; their forms are ours. Marks are given by rule. The
central prompts are chosen by an earlier run, `--curriculum.history RUN`. In the effect, fillers
please one of four criteria and nobody else: the statistic is how many answers have over twice as
many as are wanted, and pass@1 on the neutral task. The ablation is the weighted sum of the marks.
Source: none found (the model card and accounts were read: the paper has the devices in words)
Fidelity: own formula
"""

import json

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method

WRITING = {
    "criteria": {
        "constraints": {"text": "what is asked", "weight": 2, "veto": 0.34},
        "variety": {"text": "different words", "saturation": 0.5},
        "length": {"text": "long enough", "saturation": 0.75},
    },
    **{"interactions": [{"of": ["constraints", "variety"], "weight": 1}], "stretch": 2},
}

METHOD = Method(
    curriculum=CurriculumConfig(score="central", keep=512),
    needs=(
        "judge",
        "history",
    ),
)
EXAMPLE = Example(
    {
        "task": "format_following",
        "task_args": {"constraints": 3, "rubric": json.dumps(WRITING)},
        "rollout": {"max_prompt_tokens": 256, "max_new_tokens": 96},
        "packing": {"micro_batch_tokens": 4096, "row_length": 1024},
    }
)
"""The quickstart on texts under three constraints, marked by a rubric."""
