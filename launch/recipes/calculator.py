"""SmolLM2-135M-Instruct learns to call a calculator on sums that it cannot do in its head.

The task is `calculator`: sums, differences and products of three numbers of four digits. The policy
may call a tool, in the JSON format of Hermes and Qwen, and receives the result; the last number of
a turn without a call is its answer. A supervised warm start imitates 24 episodes that the task
plays itself; GRPO (Shao et al. 2024, "DeepSeekMath") then trains on whole episodes, of which the
policy's own tokens count and what the tool said does not.

Of 8 held-out problems the model answers none before the warm start and all after it, greedily. To
leave GRPO something to do, imitate fewer: --warm-start.steps 2.
"""

from jaxrl.config import CheckpointConfig, Config, EvalConfig, RolloutConfig, WarmStartConfig
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """The recipe."""
    return Config(
        recipe="calculator",
        steps=40,
        model="smollm2-135m",
        task="calculator",
        task_args={"digits": 4, "terms": 3, "calls": 2},
        warm_start=WarmStartConfig(steps=6, batch_size=4, learning_rate=1e-4),
        rollout=RolloutConfig(
            prompts=8,
            group_size=8,
            max_prompt_tokens=224,
            max_new_tokens=160,
            turn_tokens=64,
            temperature=0.8,
            chat=True,
        ),
        optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=5, b2=0.99),
        sampler=SamplerConfig(slots=64, prefill_rows=8, chunk=16, bucket=32),
        packing=PackingConfig(micro_batch_tokens=1024, row_length=1024),
        eval=EvalConfig(problems=64, every=20),
        checkpoint=CheckpointConfig(every=8),
    )
