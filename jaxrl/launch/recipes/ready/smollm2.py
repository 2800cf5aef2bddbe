"""GRPO on a real language model: SmolLM2-135M-Instruct learns to add and subtract, on a laptop.

The objective is that of `quickstart` (Shao et al. 2024, "DeepSeekMath"); the policy is a pretrained
model in its own chat template, the task comes from reasoning-gym (Stojanovski et al. 2025), whose
generator makes the problems and checks the answers: sums and differences of two numbers of up to
two digits, asked in words. The last number of a completion is its answer.

Held-out greedy accuracy rises from 0.21 to 0.46 in 17 minutes on 2 CPU cores.
"""

from jaxrl.config import CheckpointConfig, Config, EvalConfig, RolloutConfig
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """The recipe."""
    return Config(
        recipe="smollm2",
        steps=60,
        model="smollm2-135m",
        task="reasoning_gym/chain_sum",
        task_args={
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 2,
            "answer_format": "number",
            "template": "{question}",
        },
        rollout=RolloutConfig(
            prompts=8,
            group_size=8,
            max_prompt_tokens=64,
            max_new_tokens=16,
            temperature=0.8,
            chat=True,
        ),
        optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=5, b2=0.99),
        sampler=SamplerConfig(slots=64, prefill_rows=8, chunk=16, bucket=16),
        packing=PackingConfig(micro_batch_tokens=640, row_length=320),
        eval=EvalConfig(problems=256),
        checkpoint=CheckpointConfig(every=25),
    )
