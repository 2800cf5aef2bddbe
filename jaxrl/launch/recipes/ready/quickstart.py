"""GRPO on two-digit additions, from a random initialisation, in minutes on a laptop.

A transformer of under a million parameters is first trained by supervised fine-tuning on solutions
of which 65% leave out the carry. GRPO (Shao et al. 2024, "DeepSeekMath") then trains it with an
exact-match verifier. It samples a group of completions for each prompt, and raises the
log-probability of each by how much its reward exceeds the group's mean, in units of the group's
standard deviation:

    A_i = (r_i - mean(r)) / (std(r) + eps),   L = -min(rho_t A_i, clip(rho_t, 1-e, 1+e) A_i).

Held-out greedy pass@1 rises by more than 0.25.
"""

from jaxrl.config import Config, EvalConfig, RolloutConfig, WarmStartConfig
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """The recipe."""
    return Config(
        recipe="quickstart",
        steps=220,
        model="fresh",
        task="arithmetic",
        task_args={"digits": 2, "operators": "+", "slips": 0.65},
        warm_start=WarmStartConfig(steps=400, batch_size=128, learning_rate=2e-3),
        rollout=RolloutConfig(prompts=48, group_size=8, max_prompt_tokens=16, max_new_tokens=8),
        optimizer=OptimizerConfig(
            learning_rate=4e-4, schedule="linear", warmup_steps=5, weight_decay=0.1
        ),
        sampler=SamplerConfig(slots=384, prefill_rows=48, bucket=32),
        packing=PackingConfig(micro_batch_tokens=1024, row_length=128),
        eval=EvalConfig(problems=512),
        score_workers=0,
    )
