"""BLEUBERI: BLEU against a reference as reward; its choice of hard prompts needs an earlier run.

Paper: Chang et al. 2025, "BLEUBERI: BLEU is a surprisingly effective reward for instruction
following"
Idea: with a good reference, plain n-gram overlap ranks responses to an instruction about as
well as a reward model, and costs nothing. Train on the instructions that the base model does worst
by it.
Formula: `r = BLEU(y, y*)`, sentence BLEU with brevity penalty and smoothing
Claim: on par with reward-model-guided RL on four benchmarks and in human eyes, and more factual.
Reading: one reference, sacrebleu with effective order. The hardest prompts are chosen by an
earlier run of the task, `--curriculum.history RUN`; without one, as in the effect, all are trained
on. The effect has one reference for answers that can be said in two ways; its ablation rewards the
reference itself and nothing else.
Source: lilakk/BLEUBERI@e0d156392510dd858c6098008983f1c2c4d2b7f8 training/dataset.py:100
Fidelity: partial: another smoothing of BLEU
"""

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(
    curriculum=CurriculumConfig(score="difficulty", keep=512),
    rewards=("closeness?name=bleu",),
    needs=("answer",),
)
EXAMPLE = Example(
    {
        "task": "translation",
        "task_args": {"metric": "bleu"},
        "rollout": {"max_prompt_tokens": 256, "max_new_tokens": 48},
        "packing": {"micro_batch_tokens": 2048, "row_length": 512},
    }
)
"""The quickstart on translations into a made-up language."""
