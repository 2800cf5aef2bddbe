"""GRPO on questions of two hops that must be searched for, from a random initialisation.

The task is `retrieval`: each problem has facts of its own, which cannot be remembered. The policy
searches for the name in the question, then for the name that it found, and answers with the name
that it found then. A turn is one letter. Half of the reward is for finding the facts, half for the
answer, and each turn gets the credit of what follows it (Zeng et al. 2025). Without a search engine
(`--task-args.searches 0`) the same run can only guess. What it reached is in docs/environments.md.
"""

from jaxrl.config import CheckpointConfig, Config, EvalConfig, FreshModel, RolloutConfig
from jaxrl.sampling.sampler import SamplerConfig
from jaxrl.training.objective import ObjectiveConfig
from jaxrl.training.optimizer import OptimizerConfig
from jaxrl.training.packing import PackingConfig


def config() -> Config:
    """The recipe."""
    return Config(
        recipe="retrieval",
        steps=100,
        model="fresh",
        fresh=FreshModel(
            hidden_size=64,
            intermediate_size=128,
            num_layers=2,
            num_heads=4,
            num_kv_heads=4,
            head_dim=16,
        ),
        task="retrieval",
        task_args={"hops": 2, "credit": 0.5},
        rollout=RolloutConfig(
            prompts=32, group_size=8, max_prompt_tokens=8, max_new_tokens=24, turn_tokens=1
        ),
        objective=ObjectiveConfig(advantage="turn_advantages", entropy_coef=0.03),
        updates_per_batch=2,
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=5),
        sampler=SamplerConfig(slots=256, prefill_rows=64, bucket=32),
        packing=PackingConfig(micro_batch_tokens=4096, row_length=64),
        eval=EvalConfig(problems=256),
        checkpoint=CheckpointConfig(every=50),
        score_workers=0,
    )
