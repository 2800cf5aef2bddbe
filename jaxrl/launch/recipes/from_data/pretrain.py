"""Pre-training and mid-training on texts of a file: every token is learned from those before it.

The loss is the mean negative log-likelihood. Many short texts are packed into one row of model
input, and none attends to another. A text over `--data.max-tokens` becomes several rows, and none
of its tokens is lost.

    jaxrl train pretrain --data texts.jsonl --model smollm2-135m --steps 1000
"""

import dataclasses

from jaxrl.config import Config
from jaxrl.launch.recipes.from_data import sft


def config() -> Config:
    """The recipe."""
    base = sft.config()
    return dataclasses.replace(
        base,
        recipe="pretrain",
        data=dataclasses.replace(base.data, kinds=("text",), batch_size=64, long_rows="split"),
        optimizer=dataclasses.replace(
            base.optimizer, learning_rate=1e-4, warmup_steps=20, weight_decay=0.1
        ),
    )
