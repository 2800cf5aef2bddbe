"""A judge's principles, corrected on wrong rankings, as the reward: no language model reflects.

Paper: Wei et al. 2025, "Igniting Creative Writing in Small Language Models: LLM-as-a-Judge versus
Multi-Agent Refined Rewards"
Idea: a reward model of taste needs many comparisons. A judge that goes by a short list of
principles needs few: where it has taken a bad text for a good one, it reflects on the case, and the
list is rewritten. The judge is then the reward of RL.
Formula: `r = sum_k w_k m_k(y)`, `w <- w + mean (m(y+) - m(y-))` over the pairs that w ranks wrongly
Claim: above RL on a reward model from curated pairs in Chinese greetings by a 7B model, with less
annotation.
Reading: in the authors' code a model rewrites at most ten principles in words, and another writes
the bad texts; here principles stay and their weights change, on comparisons of answers as the
policy gives them. The authors' script has GRPO with a KL penalty of 0.001, which is left out. The
toy's weights come from `CASES`. In the effect, quality is hidden, and the ablation is a reward
model from the same 200 noisy comparisons; the task `many comparisons` has 4000.
Source:
weixiaolong94-hub/Igniting-Creative-Writing-in-Small-Language-Models@992c22870158a93ae81d882e7f13ff2b04691520
scripts/grpo_run.sh:23
Fidelity: partial: weights change in place of principles in words
"""

import json

import numpy as np

from jaxrl.data.rewards.judged.principles import reflected
from jaxrl.launch.method import Example, Method

PRINCIPLES = {
    "constraints": "what is asked",
    "variety": "different words",
    "length": "long enough",
}
CASES = (
    ((1.0, 0.6, 0.4), (0.3, 1.0, 1.0)),
    ((0.6, 0.7, 0.8), (0.3, 0.9, 1.0)),
    ((1.0, 0.9, 0.5), (1.0, 0.5, 1.0)),
)
"""Marks of two texts by principle, of which the first is better."""


def rubric() -> str:
    """The rubric as JSON, its weights after reflection on the cases."""
    better, worse = np.array(CASES).transpose(1, 0, 2)
    weights = np.round(reflected(better, worse, np.ones(len(PRINCIPLES))), 2)
    criteria = {
        name: {"text": text, "weight": float(weight)}
        for (name, text), weight in zip(PRINCIPLES.items(), weights, strict=True)
    }
    return json.dumps({"criteria": criteria})


METHOD = Method(needs=("judge",))
EXAMPLE = Example(
    {
        "task": "format_following",
        "task_args": {"constraints": 3, "rubric": rubric()},
        "rollout": {"max_prompt_tokens": 256, "max_new_tokens": 96},
        "packing": {"micro_batch_tokens": 4096, "row_length": 1024},
    }
)
"""The quickstart on texts under three constraints, marked by the corrected principles."""
