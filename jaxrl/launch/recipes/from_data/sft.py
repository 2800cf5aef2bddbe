"""Supervised fine-tuning on the rows of a file: conversations, prompts with answers, or texts.

The loss is the mean negative log-likelihood of the tokens to learn: of a conversation those of the
assistant's turns, of a prompt and an answer those of the answer, of a text all of them. Many short
rows are packed into one row of model input, and none attends to another.

    jaxrl train sft --data train.jsonl --model smollm2-135m --steps 200
"""

from jaxrl.config import Config, DataConfig, EvalConfig, RolloutLogConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """The recipe."""
    return Config(
        recipe="sft",
        task="",
        model="smollm2-135m",
        data=DataConfig(kinds=("messages", "completion", "text")),
        objective=ObjectiveConfig(
            policy="sft", advantage_args={"baseline": "none", "scale": "none"}
        ),
        optimizer=OptimizerConfig(learning_rate=2e-5, schedule="cosine", warmup_steps=5),
        packing=PackingConfig(micro_batch_tokens=4096, row_length=1024),
        eval=EvalConfig(problems=256),
        rollout_log=RolloutLogConfig(every=0),
        score_workers=0,
    )
