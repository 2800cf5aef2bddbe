"""Distillation on the rows of a file: the teacher's distribution over each token is learned.

Paper: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network". The divergence is the
forward KL, the reverse (`--teacher.divergence reverse`; Gu et al. 2023, "MiniLLM") or the
generalised Jensen-Shannon (`js`; Agarwal et al. 2023, GKD). The teacher's tokenizer must be the
model's.

    jaxrl train distill --data train.jsonl --model smollm2-135m --teacher TEACHER --steps 200
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.extensions.teacher import TeacherConfig
from jaxrl.launch.recipes.from_data import sft


def config() -> Config:
    """The recipe."""
    return dataclasses.replace(
        sft.config(), recipe="distill", extensions={"teacher": TeacherConfig()}
    )
